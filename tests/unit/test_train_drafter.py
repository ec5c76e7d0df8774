"""``train-drafter``: it learns, it goes on where it stopped, what it writes decodes losslessly, and bad input is one
clear sentence."""

import csv
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from adt_core import Drafting, Sampling, cli, load_drafter, load_target
from adt_core.lab.training import drafter as command
from adt_core.lab.training.features import Features
from adt_core.lab.training.unroll import read, unroll
from tests.command import words
from tests.drafted import run
from tests.layouts.families import LAYOUTS, SIZES, WRITERS

PROMPTS = [
    f"{colour} {thing}"
    for colour in ("red", "green", "blue", "black")
    for thing in ("house", "ball", "tent", "car", "tree", "kite")
]
QUICK = {"steps": 6, "batch": 3, "held_out": 2, "every": 3, "draw_batch": 8}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.fixture
def train(tiny, prompts, tmp_path, capsys):
    """Run ``train-drafter`` on the tiny target; returns the exit code and both outputs."""

    def train(output=tmp_path / "out", **given):
        options = {"model": tiny / "target", "prompts": prompts, "device": "cpu", "output": output, **QUICK}
        return cli.main(words("train-drafter", **options | given)), *capsys.readouterr()

    return train


def table(folder):
    with open(folder / "log.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(folder):
    return torch.load(folder / "training" / "checkpoint.pt", weights_only=True)["model"]


def with_and_without(target, drafter):
    """Codes of an image decoded plainly, and with the drafter."""
    for drafting in (Drafting(method="autoregressive"), Drafting(method="eagle2", depth=3, width=2, nodes=6)):
        yield run(target, drafter, ("a red house",), sampling=Sampling(seed=5), drafting=drafting).codes


# ---- it learns -------------------------------------------------------------


def test_it_learns_what_the_target_draws(train, tiny, tmp_path):
    """Loss falls, acceptance on held-out prompts rises at every depth, and ends above a random drafter's; the figures
    are in the table and the line."""
    code, out, err = train(steps=90, every=30, batch=4, held_out=8, pictures=40, compare=tiny / "drafter")
    assert code == 0, err
    rows = table(tmp_path / "out")
    assert [row["step"] for row in rows] == ["30", "60", "90"]
    assert float(rows[-1]["loss"]) < float(rows[1]["loss"])  # the first row is of another loss, without own features
    ours, random = out.strip().splitlines()
    for depth in (1, 2, 3):
        share = float(rows[-1][f"depth {depth} of 1"])
        assert share > 1.5 * float(random.split("children ")[1].split("; ")[depth - 1].split(" / ")[0])
        assert f"{share:.3f} / " in ours
    assert float(rows[-1]["tau"]) > float(rows[0]["tau"])


def test_it_begins_with_another_drafter(train, tmp_path):
    """With a learning rate of next to nothing it is still that drafter; from random weights it is another."""
    first, begun, anew = (tmp_path / name for name in ("first", "begun", "anew"))
    train(output=first, steps=30, every=30)
    told = [
        train(output=folder, start=start, compare=first, learning_rate=1e-9)
        for folder, start in ((begun, first), (anew, None))
    ]
    (ours, theirs), (random, _) = ([line.split("children ")[1] for line in out.splitlines()] for _, out, _ in told)
    assert ours == theirs != random


def test_what_it_writes_decodes_losslessly(train, tiny, tmp_path):
    """The written folder is a drafter in the published layout: it loads, fits, and changes no token."""
    assert train()[0] == 0
    target = load_target(tiny / "target", dtype=torch.float64)
    drafter = load_drafter(tmp_path / "out", target)
    assert torch.equal(drafter.embedding, target.decoder.embedding.half().double())
    assert torch.equal(*with_and_without(target, drafter))
    assert not cli.main(["inspect", str(tmp_path / "out")])


@pytest.mark.parametrize(
    "settings",
    [
        {"cfg": 1},
        {"temperature": 0},
        {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
        {"accumulate": 2, "autocast": "bfloat16", "passes": 1},
        {"autocast": "float16", "features_gb": 0},
    ],
)
def test_under_every_setting(train, tmp_path, settings):
    code, _, err = train(**settings)
    assert code == 0, err
    assert all(
        np.isfinite(float(row["loss"])) and 0 <= float(row["depth 1 of 1"]) <= float(row["depth 1 of 4"]) <= 1
        for row in table(tmp_path / "out")
    )


def test_from_captioned_pictures(train, tiny, tmp_path):
    """Each picture is cut to the model's square and encoded by its codec, and keeps its own caption."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, prompt in enumerate(PROMPTS[:6]):
        picture = Image.fromarray(rng.integers(0, 256, (48, 32 + i, 3), np.uint8))
        picture.save(folder / f"{i}.{'jpg' if i % 2 else 'png'}")
        (folder / f"{i}.txt").write_text(prompt, encoding="utf-8")
    assert train(prompts=None, images=folder)[0] == 0
    settings = json.loads((tmp_path / "out" / "training" / "settings.json").read_text(encoding="utf-8"))
    codes = np.load(tmp_path / "out" / "training" / "codes.npy")
    assert sorted(settings["captions"]) == sorted(PROMPTS[:6])
    at = settings["captions"].index(PROMPTS[0])
    pixels = torch.from_numpy(np.array(Image.open(folder / "0.png"))[8:40]).permute(2, 0, 1)[None] / 127.5 - 1
    assert codes[at].tolist() == load_target(tiny / "target").codec.encode(pixels).flatten().tolist()


def test_it_says_first_what_it_takes(train, tmp_path, monkeypatch):
    """Time, memory and disk space, of what is still to be done; a disk that is too small ends it there."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        code, _, err = train()
    assert code == 1 and re.search(
        r"--output: the training needs \d+ MB of disk space, but only 0 MB are free for '.*'", err
    )
    folder = tmp_path / "out" / "training"
    assert (np.load(folder / "codes.npy") == -1).all() and not (folder / "checkpoint.pt").exists()
    (said,) = re.findall(r"^The training takes (.*)\.$", train()[2], re.M)
    number = r"\d+(\.\d)?"
    assert re.fullmatch(
        rf"about {number} min \({number} to generate, {number} to train\), {number} GB of memory and "
        rf"{number} GB of disk",
        said,
    )
    assert "The training takes" not in train()[2], "a finished run takes nothing"


# ---- what is trained is what is run -------------------------------------------


def test_training_sees_what_inference_sees(models, tmp_path):
    """A drafter unrolled in training puts out what the proposer's network calls put out at the same depth: same pairs,
    same positions, same sight."""
    target, drafter = models
    codes = torch.randint(0, target.num_codes, (2, 16), generator=torch.Generator().manual_seed(0))
    prompts = [target.encode_prompt(text) for text in ("a house", "a much longer prompt")]
    root = 3
    passes = 3
    reading = read(target, prompts, codes, [0, 1], Sampling(), Features(tmp_path, 0))
    outs = [out[:, root] for out in unroll(drafter, reading, torch.arange(12), passes)]

    from adt_core.models.cache import KVCache
    from adt_core.models.rotary import rope_tables
    from adt_core.models.rows import BatchRows, Roots

    rows = BatchRows(reading.prompts, 64, drafter.embedding)
    cache = KVCache(drafter.config, rows.count, 64, drafter.embedding)
    rope = rope_tables(drafter.config, drafter.embedding)
    ids = rows.spread(target.decoder.image_ids[codes])
    features = reading.features.double()
    drafter(torch.cat([rows.ids[:, 1:], ids[:, :1]], 1), features[:, : rows.length], rows.prefill(), cache, rope)
    step = rows.causal_step(Roots.all_at(codes[:, 0], 0), root)
    out = drafter(ids[:, 1 : root + 1], features[:, rows.length : rows.length + root], step, cache, rope)[:, -1:]
    for depth in range(passes):
        assert torch.allclose(out[:, 0], outs[depth], atol=1e-9)
        step = rows.step(Roots.all_at(codes[:, 0], root), depth, depth, None)
        out = drafter(ids[:, root + depth + 1 : root + depth + 2], out, step, cache, rope)


def test_pictures_are_drawn_as_generate_draws_them(train, tiny, tmp_path):
    """Picture i is image i of the seed's noise under the settings that were asked for."""
    assert train(seed=9, cfg=2, top_k=10, temperature=1, top_p=1, steps=1)[0] == 0
    folder = tmp_path / "out" / "training"
    prompt = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["captions"][4]
    sampling = Sampling(seed=9, guidance=2, top_k=10)
    decoding = run(load_target(tiny / "target"), prompts=(prompt,), sampling=sampling, image_indices=[4])
    assert decoding.codes[0].tolist() == np.load(folder / "codes.npy")[4].tolist()


# ---- it goes on ---------------------------------------------------------------


def test_every_other_step_learns_at_temperature_1(train, monkeypatch):
    """What the loss compares with is the target's distribution there, on the same pictures."""
    seen = []
    learn = command.Trainer._backward

    def watched(self, reading, step, passes):
        seen.append((step, reading.sampling.temperature, reading.z))
        return learn(self, reading, step, passes)

    monkeypatch.setattr(command.Trainer, "_backward", watched)
    assert train(temperature=0.5, cfg=1, top_k=0, steps=4)[0] == 0
    steps = seen[-4:]
    assert [(step, temperature) for step, temperature, _ in steps] == [(0, 1.0), (1, 0.5), (2, 1.0), (3, 0.5)]
    warm, cool = (step[2].softmax(-1).amax(-1).mean() for step in steps[:2])
    assert cool > warm


class Stop(Exception):
    pass


def test_a_run_that_was_stopped_ends_with_the_same_weights(train, tmp_path, monkeypatch):
    """Stopped while drawing and again between two checkpoints, then gone on with: bit for bit what an uninterrupted run
    ends with."""
    assert train(tmp_path / "whole", steps=6, every=2)[0] == 0

    def stop_after(patch, count, owner, name):
        whole = getattr(owner, name)

        def counted(*args, **settings):
            nonlocal count
            count -= 1
            if count < 0:
                raise Stop
            return whole(*args, **settings)

        patch.setattr(owner, name, counted)

    for owner, name, count in ((command.TrainingImages, "put", 1), (command.Trainer, "_train_step", 3)):
        with monkeypatch.context() as patch:
            stop_after(patch, count, owner, name)
            assert train(steps=6, every=2)[0] == 1
    assert train(steps=6, every=2)[0] == 0
    whole = weights(tmp_path / "whole")
    resumed = weights(tmp_path / "out")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert [row["step"] for row in table(tmp_path / "out")] == ["2", "4", "6"]
    written = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "out")]
    assert written[0] == written[1]


def test_a_finished_run_says_its_figures_again(train):
    first = train()
    second = train()
    assert first[0] == second[0] == 0 and first[1] == second[1]


def test_a_run_that_an_earlier_version_began_goes_on(train, tmp_path):
    """It did not write down all that is now."""
    assert train()[0] == 0
    path = tmp_path / "out" / "training" / "settings.json"
    before = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({name: value for name, value in before.items() if name not in ("dtype", "exact")}), encoding="utf-8"
    )
    assert train()[0] == 0


def test_kept_features_change_nothing(train, tmp_path):
    """A run that finds its features on disk, and one that makes them every time."""
    for name, room in (("kept", 1), ("made", 0)):
        assert train(tmp_path / name, features_gb=room, steps=9)[0] == 0
    kept = weights(tmp_path / "kept")
    made = weights(tmp_path / "made")
    assert list((tmp_path / "kept" / "training" / "features").iterdir())
    assert not (tmp_path / "made" / "training" / "features").exists()
    assert all(torch.allclose(kept[name], made[name], atol=1e-3) for name in kept)


# ---- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, said",
    [
        ({"steps": -1}, "--steps is -1; it must be 1 or more."),
        ({"temperature": -1}, "temperature is -1.0; it must be a number from 0 to 100."),
        (
            {"held_out": 24},
            "has 24 captions, but 27 are needed: 24 for measuring (--held-out) and 3 for one step (--batch)",
        ),
        ({"pictures": 2}, "gives 2 images to train on, but one step needs 3 (--batch); increase --pictures."),
        ({"prompts": "no.txt"}, "--prompts: 'no.txt' can't be read"),
        (
            {"prompts": None, "images": "nowhere"},
            "--images: 'nowhere' is not a folder; choose a folder of images with captions, such as 1.jpg and 1.txt.",
        ),
    ],
)
def test_bad_options(train, tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = train(**given)
    assert code == 2 and not out and said in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_is_compared_with_is_looked_at_first(train, tmp_path):
    for name, said in (
        ("jacobi", "--compare: 'jacobi' is not an EAGLE"),
        ("nowhere", "drafter 'nowhere' does not exist"),
    ):
        code, _, err = train(compare=name)
        assert code == 1 and said in err and not (tmp_path / "out").exists()


def test_what_it_begins_with_is_looked_at_first(train, tiny, tmp_path):
    other = tmp_path / "without a norm"
    shutil.copytree(tiny / "drafter", other)
    weights = load_file(other / "model.safetensors")
    del weights["layers.0.input_layernorm.weight"]
    save_file(weights, other / "model.safetensors")
    for start, said in (
        ("jacobi", "--start: 'jacobi' is not an EAGLE drafter"),
        ("nowhere", "drafter 'nowhere' does not exist"),
        (other, "--start: this drafter has another architecture than the one to train"),
    ):
        code, _, err = train(start=start)
        assert code == 1 and said in err and err.count("\n") == 1 and not (tmp_path / "out" / "training").exists()


def test_bad_pictures(train, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    assert "contains no .jpg, .jpeg, .png, .webp" in train(prompts=None, images=folder)[2]
    for i in range(6):
        (folder / f"{i}.png").write_bytes(b"no picture")
    assert "has no caption; write what it shows in 0.txt next to it." in train(prompts=None, images=folder)[2]
    for i in range(6):
        (folder / f"{i}.txt").write_text("a house", encoding="utf-8")
    code, _, err = train(prompts=None, images=folder)
    assert code == 1 and "can't be read as an image" in err and "remove it or save it again." in err


def test_an_output_that_is_something_else(train, tiny, tmp_path):
    assert "contains a model that was not trained here" in train(tiny / "target")[2]
    assert train()[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    code, _, err = train(cfg=2)
    advice = "use the same options to resume it, or choose another folder."
    assert code == 2 and f"was started with guidance 3.0, but now it is 2.0; {advice}" in err
    assert "was started with dtype float32, but now it is bfloat16" in train(dtype="bfloat16")[2]
    assert "was started with exact on, but now it is off" in train(exact="off")[2]
    assert "was started with other captions" in train(held_out=3)[2] or "held_out 2" in train(held_out=3)[2]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


# ---- for any family --------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("layout", [*sorted(WRITERS.keys() - {"chameleon", "llamagen"}), "llamagen, authors'"])
def test_a_drafter_for_every_family(train, tmp_path, layout):
    """Ends of rows, captions of a text encoder, grid rotation, a head with a hidden layer: what is written fits, and
    drafts from what it learned."""
    model = LAYOUTS[layout](tmp_path)
    size = SIZES.get(layout)
    code, _, err = train(model=model, steps=24, every=12, size=size and "x".join(map(str, size)))
    assert code == 0, err
    rows = table(tmp_path / "out")
    assert all(np.isfinite(float(row["loss"])) for row in rows) and float(rows[-1]["loss"]) < float(rows[0]["loss"])
    target = load_target(model, dtype=torch.float64)
    target = target.sized(*size) if size else target
    drafter = load_drafter(tmp_path / "out", target)
    assert torch.equal(*with_and_without(target, drafter))
