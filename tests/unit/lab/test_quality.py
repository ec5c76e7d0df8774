"""Tests of image quality measures with tiny random models: columns, shared scores, and invalid weights."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from adt_core import cli
from adt_core.app.args import QualityArgs
from adt_core.lab import quality
from adt_core.lab.report import summary
from tests.command import read_json, words
from tests.metrics import write_clip
from tests.raising import raises_key

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def predictor(tmp_path):
    """Write a predictor in LAION's layout, of two linear layers."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"layers.0.weight": (3, 8), "layers.0.bias": (3,), "layers.2.weight": (1, 3), "layers.2.bias": (1,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "predictor.safetensors")
    return tmp_path / "predictor.safetensors"


def noise(seed: int, size=(48, 40)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def test_clip_score_and_aesthetic_score(clip, predictor):
    from transformers import CLIPModel, CLIPProcessor

    metric = quality.clip_metric(clip, "clip", "CLIP score", CPU, predictor)
    model = CLIPModel.from_pretrained(clip).eval()
    processor = CLIPProcessor.from_pretrained(clip)
    layers = {name: value.double() for name, value in load_file(predictor).items()}
    for seed in range(6):
        with torch.inference_mode():
            found = model(**processor(text=["a cat"], images=[noise(seed)], return_tensors="pt"))
        embedding = found.image_embeds[0].double()
        cosine = torch.cosine_similarity(embedding, found.text_embeds[0].double(), dim=0).item()
        hidden = layers["layers.0.weight"] @ embedding + layers["layers.0.bias"]
        score = layers["layers.2.weight"] @ hidden + layers["layers.2.bias"]
        scores = metric(noise(seed), "a cat")
        assert scores == {
            "CLIP score": (pytest.approx(100 * max(cosine, 0), abs=1e-3), 1),
            "aesthetic": (pytest.approx(score.item(), abs=1e-4), 1),
        }
    assert metric(noise(0), "a very long prompt " * 30)  # the text is truncated


class Layers(nn.Module):
    """Transformer of open_clip with two layers of 16 heads."""

    def __init__(self, width: int):
        super().__init__()
        self.resblocks = nn.ModuleList(nn.Module() for _ in range(2))
        for block in self.resblocks:
            block.ln_1, block.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            block.attn = nn.MultiheadAttention(width, 16, batch_first=True)
            block.mlp = nn.Sequential()
            block.mlp.c_fc, block.mlp.gelu = nn.Linear(width, 3 * width), nn.GELU()
            block.mlp.c_proj = nn.Linear(3 * width, width)

    def forward(self, x, mask=None):
        for block in self.resblocks:
            y = block.ln_1(x)
            x = x + block.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
            x = x + block.mlp(block.ln_2(x))
        return x


class OpenClip(nn.Module):
    """CLIP with the names and the computation of open_clip, for images of 32 pixels and texts of 20 tokens."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.visual = nn.Module()
        self.visual.conv1 = nn.Conv2d(3, 32, 16, 16, bias=False)
        self.visual.class_embedding = nn.Parameter(torch.randn(32))
        self.visual.positional_embedding = nn.Parameter(torch.randn(5, 32))
        self.visual.ln_pre, self.visual.ln_post = nn.LayerNorm(32), nn.LayerNorm(32)
        self.visual.transformer = Layers(32)
        self.visual.proj = nn.Parameter(torch.randn(32, 8))
        self.token_embedding = nn.Embedding(vocabulary, 16)
        self.positional_embedding = nn.Parameter(torch.randn(20, 16))
        self.transformer, self.ln_final = Layers(16), nn.LayerNorm(16)
        self.text_projection = nn.Parameter(torch.randn(16, 8))
        self.logit_scale = nn.Parameter(torch.ones(()))

    def score(self, pixels, ids):
        visual = self.visual
        x = visual.conv1(pixels[None]).flatten(2).transpose(1, 2)
        x = torch.cat([visual.class_embedding[None, None], x], 1) + visual.positional_embedding
        image = visual.ln_post(visual.transformer(visual.ln_pre(x))[:, 0]) @ visual.proj
        x = self.token_embedding(ids)[None] + self.positional_embedding[: len(ids)]
        causal = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
        text = self.ln_final(self.transformer(x, causal))[:, ids.argmax()] @ self.text_projection
        return torch.cosine_similarity(image, text).item()


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_hps_in_the_layout_of_open_clip(tmp_path, has_tokenizer):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = OpenClip(7).eval()
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "HPS.pt")
    tokens = ["a", "b", "a</w>", "b</w>", "ab</w>", "<|startoftext|>", "<|endoftext|>"]
    own = tmp_path if has_tokenizer else tmp_path / "clip"
    own.mkdir(exist_ok=True)
    ids = {token: number for number, token in enumerate(tokens)}
    (own / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (own / "merges.txt").write_text("#version: 0.2\na b</w>\n", encoding="utf-8")
    metric = quality.clip_metric(tmp_path / "HPS.pt", "hps", "HPSv2", CPU, tokenizer=tmp_path / "clip")
    image = noise(3, (16, 32))
    padded = np.zeros((32, 32, 3))
    padded[8:24] = np.asarray(image)
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = torch.from_numpy((padded / 255 - mean) / std).permute(2, 0, 1).float()
    signs = []
    for prompt, parts in (("ab", ["ab</w>"]), ("a", ["a</w>"]), ("b a", ["b</w>", "a</w>"]), ("aa " * 30, [])):
        texts = torch.tensor([5, *map(ids.get, parts or ["a", "a</w>"] * 9), 6])
        with torch.inference_mode():
            expected = model.score(pixels, texts)
        assert metric(image, prompt) == {"HPSv2": (pytest.approx(100 * max(expected, 0), abs=1e-3), 1)}
        signs.append(expected > 0)
    assert all(signs), "scores below 0 are cut, so they would show nothing"


def test_hps_without_a_tokenizer(tmp_path):
    torch.save({}, tmp_path / "HPS.pt")
    with raises_key("clip.no_tokenizer", input="hps"):
        quality.clip_metric(tmp_path / "HPS.pt", "hps", "HPSv2", CPU)


def test_columns_are_sums_divided_by_counts():
    names = "seconds tau accepted_per_round mean_depth target_forwards drafter_forwards agreement substitution_rate"
    run = dict.fromkeys([*names.split(), "verified_drafts"], 1)
    records = [{"runs": {"no-drafting": {**run, "quality": {"attributes": scores}}}} for scores in ((1, 4), (2, 2))]
    (row,) = summary(records, {"no-drafting": {"FID": 7.0}})
    assert row["attributes"] == 0.5 and row["FID"] == 7.0


def test_identical_images_are_scored_once(tiny, tmp_path, clip, predictor, capsys, monkeypatch):
    calls = []
    make = quality.clip_metric

    def counted(*args):
        metric = make(*args)
        return lambda image, prompt: calls.append(prompt) or metric(image, prompt)

    def readable(images):
        counts = {name: sum(Image.open(file).size == (32, 32) for file in files) for name, files in images.items()}
        return {name: {"IS": float(count)} for name, count in counts.items()}

    monkeypatch.setattr(quality, "clip_metric", counted)
    monkeypatch.setattr(quality, "inception_metric", lambda *args: readable)
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n", encoding="utf-8")
    options = {"model": tiny / "target", "drafter": tiny / "drafter", "dtype": "float64"}
    options |= {"prompts": tmp_path / "prompts.txt", "methods": "jacobi,jacobi+lantern", "lantern_delta": 1}
    options |= {"output": tmp_path / "out", "inception": "weights", "clip": clip, "aesthetic": predictor}
    command = words("benchmark", **options)
    assert cli.main(command) == 0
    table = capsys.readouterr().out
    results = read_json(tmp_path / "out" / "results.json")
    plain, exact, relaxed = results["summary"]
    assert len(calls) == 4, "the images of jacobi equal the images of plain decoding, so they must not be scored again"
    assert all(plain[column] == exact[column] for column in ("CLIP score", "aesthetic", "IS"))
    assert plain["aesthetic"] != relaxed["aesthetic"] and plain["IS"] == relaxed["IS"] == 2
    assert "| CLIP score | aesthetic | IS |" in table
    assert "Not measured: HPSv2 (needs `hps`), FID (needs torch-fidelity, " in table
    assert str(clip) in results["settings"]["metrics"][0]
    images = tmp_path / "out" / "images"
    written = [path.relative_to(images).as_posix() for path in images.rglob("*.png")]
    assert sorted(written) == [f"{name}/000{i}.png" for name in ("jacobi+lantern", "no-drafting") for i in (1, 2)]
    assert cli.main(command) == 0 and len(calls) == 4, "nothing may be measured again"
    assert cli.main(command[:-4]) == 1 and "other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, key",
    [
        ({"aesthetic": "p"}, "aesthetic.no_clip"),
        ({"real_images": "p"}, "fid.no_inception"),
        ({"clip": "nowhere"}, "clip.no_config"),
        ({"hps": "nowhere"}, "clip.no_config"),
        ({"inception": "nowhere"}, "fid.no_library"),
    ],
)
def test_missing_weights_are_reported(given, key, tmp_path):
    given = {name: tmp_path / path for name, path in given.items()}
    with raises_key(key):
        quality.choose_metrics(**{name: given.get(name) for name in QualityArgs.weights()}, count=1, device=CPU)


def test_invalid_predictors(clip, tmp_path):
    save_file({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "damaged.pth").write_bytes(b"no tensors")
    for name, key in (("other.safetensors", "aesthetic.wrong_size"), ("damaged.pth", "scores.no_tensors")):
        with raises_key(key, path=name):
            quality.clip_metric(clip, "clip", "CLIP score", CPU, tmp_path / name)


class PanicException(BaseException):
    """Stand-in for the exception of the tokenizers library."""

    __module__ = "pyo3_runtime"


@pytest.mark.parametrize("at, key", [("from_pretrained", "scores.wrong_clip"), ("__call__", "clip.unreadable_prompt")])
def test_panics_of_a_tokenizer_are_converted(clip, monkeypatch, at, key):
    from transformers import CLIPProcessor

    def panic(*_, **__):
        raise PanicException("attempt to divide by zero")

    monkeypatch.setattr(CLIPProcessor, at, panic)
    with raises_key(key, input="clip", reason="attempt to divide by zero"):
        quality.clip_metric(clip, "clip", "CLIP score", CPU)(Image.new("RGB", (8, 8)), "a cat")


def test_damaged_clip(clip, tmp_path):
    (tmp_path / "config.json").write_text((clip / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    with raises_key("scores.wrong_clip", input="clip"):
        quality.clip_metric(tmp_path, "clip", "CLIP score", CPU)


def test_inception_score_and_fid(tmp_path):
    """The weights are random. The FID of equal sets must be 0, and reference images may have any size."""
    inception = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        patch.setattr(inception, "load_state_dict_from_url", lambda *args, **kwargs: {})
        patch.setattr(inception.FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        network = inception.FeatureExtractorInceptionV3("x", ["2048"])
    torch.save(
        {name: value * 6**0.5 if value.ndim == 4 else value for name, value in network.state_dict().items()},
        tmp_path / "inception.pth",
    )
    files = {name: [tmp_path / name / f"{i}.png" for i in range(3)] for name in ("no-drafting", "other")}
    for number, file in enumerate(file for group in files.values() for file in group):
        file.parent.mkdir(exist_ok=True)
        noise(number, (32, 32)).save(file)
    files["same"] = files["no-drafting"]
    real = tmp_path / "real"
    real.mkdir()
    for number in range(3):
        noise(number, (32, 32)).save(real / f"{number}.png")
    metric = quality.inception_metric(tmp_path / "inception.pth", real, 3, CPU)
    found = metric(files)
    assert found["same"] == found["no-drafting"] and found["same"]["IS"] > 1
    assert abs(found["same"]["FID"]) < 1e-3 * found["other"]["FID"]
    noise(9, (90, 50)).save(real / "odd.jpg")
    assert np.isfinite(quality.inception_metric(tmp_path / "inception.pth", real, 3, CPU)(files)["other"]["FID"])
    with raises_key("fid.too_few"):
        quality.inception_metric(tmp_path / "inception.pth", real, 1, CPU)


def test_damaged_reference_images_are_reported(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    noise(0, (8, 8)).save(tmp_path / "b.png")
    torch.save({}, tmp_path / "weights.pth")
    reading = SimpleNamespace(calculate_metrics=lambda input2, **_: [input2[i] for i in range(len(input2))])
    monkeypatch.setitem(sys.modules, "torch_fidelity", reading)
    metric = quality.inception_metric(tmp_path / "weights.pth", tmp_path, 2, CPU)
    with raises_key("real_images.unreadable", path="a.png"):
        metric({"no-drafting": [tmp_path / "b.png"]})


def test_variants_of_the_inception_scores(tmp_path, monkeypatch):
    """`splits` and `stretch` must reach torch-fidelity, and the report must name them."""
    real = tmp_path / "real"
    real.mkdir()
    wide = Image.new("RGB", (30, 10), "white")
    wide.paste("black", (0, 0, 10, 10))  # a crop to the central square removes the black part
    for name in ("a.png", "b.png"):
        wide.save(real / name)
    noise(0, (10, 10)).save(tmp_path / "drawn.png")
    torch.save({}, tmp_path / "weights.pth")
    seen = []

    def calculate_metrics(input2, isc_splits, **_):
        seen.append((isc_splits, "black" if input2[0].min() < 50 else "white"))
        return {"inception_score_mean": 1.0, "frechet_inception_distance": 0.0}

    monkeypatch.setitem(sys.modules, "torch_fidelity", SimpleNamespace(calculate_metrics=calculate_metrics))
    paths = dict.fromkeys(QualityArgs.weights()) | {"inception": tmp_path / "weights.pth", "real_images": real}
    for options, shape in (({}, "cropped"), ({"splits": 2, "stretch": True}, "stretched")):
        metrics = quality.choose_metrics(**paths, count=2, device=CPU, **options)
        metrics.sets({"no-drafting": [tmp_path / "drawn.png"]})
        assert f"mean over {options.get('splits', 1)} parts; images for Inception are {shape}" in metrics.note
    assert seen == [(1, "white"), (2, "black")]
    with raises_key("splits.too_many", splits=3, count=2):
        quality.choose_metrics(**paths, count=2, device=CPU, splits=3)
