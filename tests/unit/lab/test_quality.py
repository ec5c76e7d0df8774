"""Tests of image quality measures with tiny random models: columns, shared scores, and invalid weights."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

from adt_core import cli
from adt_core.app.args import QualityArgs
from adt_core.errors import AdtError
from adt_core.lab import quality
from adt_core.lab.report import summary
from tests.command import words

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Return the folder of a random CLIP model with 8 embedding dimensions and a byte tokenizer."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**layers, "vocab_size": 300, "max_position_embeddings": 20, "bos_token_id": 0, "eos_token_id": 1},
        vision_config={**layers, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    tokens = ["<|startoftext|>", "<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    (folder / "vocab.json").write_text(
        json.dumps({token: number for number, token in enumerate(tokens)}), encoding="utf-8"
    )
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    CLIPProcessor(
        CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}), tokenizer
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def predictor(tmp_path):
    """Write a predictor in LAION's layout.

    Linear layer 0 maps 8 dimensions to 3. Linear layer 2 maps 3 dimensions to 1.
    """
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "layers.0.weight": torch.randn(3, 8, generator=generator),
        "layers.0.bias": torch.randn(3, generator=generator),
        "layers.2.weight": torch.randn(1, 3, generator=generator),
        "layers.2.bias": torch.randn(1, generator=generator),
    }
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
        return {
            name: {"IS": float(sum(Image.open(file).size == (32, 32) for file in files))}
            for name, files in images.items()
        }

    monkeypatch.setattr(quality, "clip_metric", counted)
    monkeypatch.setattr(quality, "inception_metric", lambda *args: readable)
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n", encoding="utf-8")
    options = {"model": tiny / "target", "drafter": tiny / "drafter", "dtype": "float64"}
    options |= {"prompts": tmp_path / "prompts.txt", "methods": "jacobi,jacobi+lantern", "lantern_delta": 1}
    options |= {"output": tmp_path / "out", "inception": "weights", "clip": clip, "aesthetic": predictor}
    command = words("benchmark", **options)
    assert cli.main(command) == 0
    table = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
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
    "given, named",
    [
        ({"aesthetic": "p"}, "aesthetic"),
        ({"real_images": "p"}, "real_images"),
        ({"clip": "nowhere"}, "clip"),
        ({"hps": "nowhere"}, "hps"),
        ({"inception": "nowhere"}, "inception"),
    ],
)
def test_missing_weights_are_reported(given, named, tmp_path):
    given = {name: tmp_path / path for name, path in given.items()}
    with pytest.raises(AdtError, match=named):
        quality.choose(**{name: given.get(name) for name in QualityArgs.fields()}, count=1, device=CPU)


def test_invalid_predictors(clip, tmp_path):
    save_file({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "damaged.pth").write_bytes(b"no tensors")
    for name, problem in (("other.safetensors", "8 numbers"), ("damaged.pth", "file of tensors")):
        with pytest.raises(AdtError, match=f"aesthetic.*{problem}"):
            quality.clip_metric(clip, "clip", "CLIP score", CPU, tmp_path / name)


class PanicException(BaseException):
    """Stand-in for the exception of the tokenizers library."""

    __module__ = "pyo3_runtime"


@pytest.mark.parametrize(
    "at, problem", [("from_pretrained", "is not a complete CLIP model"), ("__call__", "can't read 'a cat'")]
)
def test_panics_of_a_tokenizer_are_converted(clip, monkeypatch, at, problem):
    from transformers import CLIPProcessor

    def panic(*_, **__):
        raise PanicException("attempt to divide by zero")

    monkeypatch.setattr(CLIPProcessor, at, panic)
    with pytest.raises(AdtError, match=f"clip: .* {problem}.*attempt to divide by zero"):
        quality.clip_metric(clip, "clip", "CLIP score", CPU)(Image.new("RGB", (8, 8)), "a cat")


def test_damaged_clip(clip, tmp_path):
    (tmp_path / "config.json").write_text((clip / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(AdtError, match="clip: .* is not a complete CLIP model"):
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
    with pytest.raises(AdtError, match="real_images"):
        quality.inception_metric(tmp_path / "inception.pth", real, 1, CPU)


def test_damaged_reference_images_are_reported(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    noise(0, (8, 8)).save(tmp_path / "b.png")
    torch.save({}, tmp_path / "weights.pth")
    reading = SimpleNamespace(calculate_metrics=lambda input2, **_: [input2[i] for i in range(len(input2))])
    monkeypatch.setitem(sys.modules, "torch_fidelity", reading)
    metric = quality.inception_metric(tmp_path / "weights.pth", tmp_path, 2, CPU)
    with pytest.raises(AdtError, match="a.png' can't be read as an image; remove it"):
        metric({"no-drafting": [tmp_path / "b.png"]})
