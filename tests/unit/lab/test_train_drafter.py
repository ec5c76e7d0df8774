"""Tests of the command train-drafter: training, resuming, lossless decoding, and errors for invalid input."""

import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from adt_core import Drafting, Sampling, cli, load_drafter, load_target
from adt_core.lab.training import drafter as command
from adt_core.lab.training import training_state
from adt_core.lab.training.features import Features
from adt_core.lab.training.unroll import read, unroll
from adt_core.models.cache import KVCache
from adt_core.models.layers import LayerContext
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.run.folder_lock import FolderLock
from tests.command import read_json, read_table, words
from tests.drafted import run
from tests.layouts.families import LAYOUTS, SIZES, WRITERS

PROMPTS = [
    f"{colour} {thing}"
    for colour in ("red", "green", "blue", "black")
    for thing in ("house", "ball", "tent", "car", "tree", "kite")
]
QUICK = {"steps": 6, "training_batch_size": 3, "validation_prompts": 2, "every": 3, "generation_batch_size": 8}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.fixture
def train(tiny, prompts, tmp_path, capsys):
    """Return a function that runs `train-drafter` with the tiny target: options -> exit code, output and errors."""

    def train(output=tmp_path / "out", **given):
        options = {"model": tiny / "target", "prompts": prompts, "device": "cpu", "output": output, **QUICK}
        return cli.main(words("train-drafter", **options | given)), *capsys.readouterr()

    return train


def table(folder):
    return read_table(folder / "log.csv")


def weights(folder):
    return training_state.read(folder / "training" / "checkpoint.safetensors")["model"]


def with_and_without(target, drafter):
    """Yield the codes of an image, first from plain decoding, then with the drafter."""
    for drafting in (Drafting(method="no-drafting"), Drafting(method="eagle2", depth=3, width=2, drafts=6)):
        yield run(target, drafter, ("a red house",), sampling=Sampling(seed=5), drafting=drafting).codes


# ---- training -------------------------------------------------------------


def test_tensorboard_shows_the_columns_of_the_log(train, tmp_path, monkeypatch):
    """A resumed training must not log the measurements of earlier runs again."""
    scalars = []

    class SummaryWriter:
        def __init__(self, folder):
            assert folder == str(tmp_path / "logs")

        def add_scalar(self, name, value, step):
            scalars.append((name, float(value), step))

        def close(self):
            scalars.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    for steps in (4, 7):
        code, _, err = train(steps=steps, logging_dir=tmp_path / "logs")
        assert code == 0, err
    rows = table(tmp_path / "out")
    expected = [(name, float(value), int(row["step"])) for row in rows for name, value in row.items() if name != "step"]
    assert [int(row["step"]) for row in rows] == [3, 4, 6, 7]
    assert [scalar for scalar in scalars if scalar != "closed"] == expected and scalars[-1] == "closed"


def test_logs_need_tensorboard(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = train(logging_dir=tmp_path / "logs")
    assert code == 1 and "--logging-dir needs TensorBoard" in err and "pip install tensorboard" in err


def test_training_improves_loss_and_acceptance(train, tiny, tmp_path):
    """At every depth, acceptance on held-out prompts is higher than with a random drafter, in log and summary."""
    longer = {"steps": 90, "every": 30, "training_batch_size": 4, "validation_prompts": 8, "training_images": 40}
    code, out, err = train(**longer, compare=tiny / "drafter")
    assert code == 0, err
    rows = table(tmp_path / "out")
    assert [row["step"] for row in rows] == ["30", "60", "90"]
    # the first row is from the warm-up, which has another loss
    assert float(rows[-1]["loss"]) < float(rows[1]["loss"])
    trained, random = out.strip().splitlines()
    for depth in (1, 2, 3):
        share = float(rows[-1][f"depth {depth} of 1"])
        assert share > 1.5 * float(random.split("children ")[1].split("; ")[depth - 1].split(" / ")[0])
        assert f"{share:.3f} / " in trained
    assert float(rows[-1]["tau"]) > float(rows[0]["tau"])


def test_start_from_another_drafter(train, tmp_path):
    """With a learning rate near 0, the weights must stay equal to the weights of the other drafter."""
    first, continued, new = (tmp_path / name for name in ("first", "continued", "new"))
    train(output=first, steps=30, every=30)
    summaries = []
    for folder, start in ((continued, first), (new, None)):
        _, out, _ = train(output=folder, start=start, compare=first, learning_rate=1e-9)
        summaries += [line.split("children ")[1] for line in out.splitlines()]
    trained, compared, random, _ = summaries
    assert trained == compared != random


def test_the_trained_drafter_decodes_losslessly(train, tiny, tmp_path):
    """The output folder must be loadable as a drafter in the published format."""
    assert train()[0] == 0
    target = load_target(tiny / "target", dtype=torch.float64)
    drafter = load_drafter(tmp_path / "out", target)
    assert torch.equal(drafter.embedding, target.decoder.embedding.half().double())
    assert torch.equal(*with_and_without(target, drafter))
    assert not cli.main(["inspect", str(tmp_path / "out")])


@pytest.mark.parametrize(
    "settings",
    [
        {"guidance_scale": 1},
        {"temperature": 0},
        {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
        {"accumulate": 2, "autocast": "bfloat16", "passes": 1},
        {"autocast": "float16", "cache_gb": 0},
    ],
)
def test_training_settings(train, tmp_path, settings):
    code, _, err = train(**settings)
    assert code == 0, err
    assert all(
        np.isfinite(float(row["loss"])) and 0 <= float(row["depth 1 of 1"]) <= float(row["depth 1 of 4"]) <= 1
        for row in table(tmp_path / "out")
    )


def test_training_on_captioned_images(train, tiny, tmp_path):
    """Images must be cropped to the model's square format and encoded. They must keep their captions."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, prompt in enumerate(PROMPTS[:6]):
        picture = Image.fromarray(rng.integers(0, 256, (48, 32 + i, 3), np.uint8))
        picture.save(folder / f"{i}.{'jpg' if i % 2 else 'png'}")
        (folder / f"{i}.txt").write_text(prompt, encoding="utf-8")
    assert train(prompts=None, images=folder)[0] == 0
    settings = read_json(tmp_path / "out" / "training" / "settings.json")
    codes = np.load(tmp_path / "out" / "training" / "codes.npy")
    assert sorted(settings["captions"]) == sorted(PROMPTS[:6])
    at = settings["captions"].index(PROMPTS[0])
    pixels = torch.from_numpy(np.array(Image.open(folder / "0.png"))[8:40]).permute(2, 0, 1)[None] / 127.5 - 1
    assert codes[at].tolist() == load_target(tiny / "target").codec.encode(pixels).flatten().tolist()


def test_estimate_of_time_memory_and_disk_space(train, tmp_path, monkeypatch):
    """The estimate must be for the rest of the run. Too little disk space must be an error."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        code, _, err = train()
    sentence = r"--output: the training needs \d+ MB of disk space, but only 0 MB are free for '.*'"
    assert code == 1 and re.search(sentence, err)
    folder = tmp_path / "out" / "training"
    assert (np.load(folder / "codes.npy") == -1).all() and not (folder / "checkpoint.safetensors").exists()
    (estimate,) = re.findall(r"^The training takes (.*)\.$", train()[2], re.M)
    number = r"\d+(\.\d)?"
    times = rf"{number} (min|s) \({number} to generate, {number} to train\)"
    assert re.fullmatch(rf"about {times}, {number} GiB of memory and {number} GiB of disk", estimate)
    assert "The training takes" not in train()[2], "the command must print no estimate for a finished run"


def test_training_equals_inference(models, tmp_path):
    """At every depth, training's unrolled passes must give the same outputs as the drafter's calls at inference."""
    target, drafter = models
    codes = torch.randint(0, target.num_codes, (2, 16), generator=torch.Generator().manual_seed(0))
    prompts = [target.encode_prompt(text) for text in ("a house", "a much longer prompt")]
    root = 3
    passes = 3
    outputs = read(target, prompts, codes, [0, 1], Sampling(), Features(tmp_path, 0))
    outs = [out[:, root] for out in unroll(drafter, outputs, torch.arange(12), passes)]

    rows = BatchRows(outputs.prompts, 64, drafter.embedding)
    cache = KVCache(drafter.config, rows.count, 64, drafter.embedding)
    context = partial(LayerContext.of, rope=rope_tables(drafter.config, drafter.embedding), config=drafter.config)
    ids = rows.spread(target.decoder.image_ids[codes])
    features = outputs.features.double()
    drafter(torch.cat([rows.ids[:, 1:], ids[:, :1]], 1), features[:, : rows.length], context(rows.prefill()), cache)
    step = context(rows.causal_metadata(Roots.all_at(codes[:, 0], 0), root))
    out = drafter(ids[:, 1 : root + 1], features[:, rows.length : rows.length + root], step, cache)[:, -1:]
    for depth in range(passes):
        assert torch.allclose(out[:, 0], outs[depth], atol=1e-9)
        step = context(rows.metadata(Roots.all_at(codes[:, 0], root), depth, depth, None))
        out = drafter(ids[:, root + depth + 1 : root + depth + 2], out, step, cache)


def test_training_images_equal_those_of_generate(train, tiny, tmp_path):
    """Image i of the training must be drawn with the noise of image index i."""
    assert train(seed=9, guidance_scale=2, top_k=10, temperature=1, top_p=1, steps=1)[0] == 0
    folder = tmp_path / "out" / "training"
    prompt = read_json(folder / "settings.json")["captions"][4]
    sampling = Sampling(seed=9, guidance_scale=2, top_k=10)
    decoding = run(load_target(tiny / "target"), prompts=(prompt,), sampling=sampling, image_indices=[4])
    assert decoding.codes[0].tolist() == np.load(folder / "codes.npy")[4].tolist()


# ---- resuming ---------------------------------------------------------------


def test_every_second_step_uses_temperature_1(train, monkeypatch):
    seen = []
    backward = command.Trainer._backward

    def recorded(self, outputs, step, passes):
        seen.append((step, outputs.sampling.temperature, outputs.z))
        return backward(self, outputs, step, passes)

    monkeypatch.setattr(command.Trainer, "_backward", recorded)
    assert train(temperature=0.5, guidance_scale=1, top_k=0, steps=4)[0] == 0
    steps = seen[-4:]
    assert [(step, temperature) for step, temperature, _ in steps] == [(0, 1.0), (1, 0.5), (2, 1.0), (3, 0.5)]
    warm, cool = (step[2].softmax(-1).amax(-1).mean() for step in steps[:2])
    assert cool > warm


class Stop(Exception):
    pass


def test_an_interrupted_run_has_the_same_weights(train, tmp_path, monkeypatch):
    """The run is interrupted while images are generated, and between two checkpoints."""
    assert train(tmp_path / "complete", steps=6, every=2)[0] == 0

    def stop_after(patch, count, owner, name):
        original = getattr(owner, name)

        def counted(*args, **settings):
            nonlocal count
            count -= 1
            if count < 0:
                raise Stop
            return original(*args, **settings)

        patch.setattr(owner, name, counted)

    kept = []
    monkeypatch.setattr(command.ProgressBars, "on_stop", lambda self, *numbers: kept.append(numbers))
    for owner, name, count in ((command.TrainingImages, "put", 1), (command.Trainer, "_train_step", 3)):
        with monkeypatch.context() as patch:
            stop_after(patch, count, owner, name)
            assert train(steps=6, every=2)[0] == 1
    (some, total, _), _ = kept
    assert kept == [(some, total, 0), (total, total, 2)] and 0 < some < total, "one step is not in the checkpoint"
    assert train(steps=6, every=2)[0] == 0
    complete = weights(tmp_path / "complete")
    resumed = weights(tmp_path / "out")
    assert all(torch.equal(complete[name], resumed[name]) for name in complete)
    assert [row["step"] for row in table(tmp_path / "out")] == ["2", "4", "6"]
    written = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("complete", "out")]
    assert written[0] == written[1]


def test_two_processes_do_not_train_in_one_folder(train, tmp_path):
    """The second training to end replaced the drafter of the first."""
    with FolderLock(tmp_path / "out" / "training", ".adt-tree.lock"):
        code, _, err = train()
        assert code == 1 and f"another process is writing to '{tmp_path / 'out' / 'training'}'" in err
    assert train()[0] == 0 and not list(tmp_path.rglob("*.lock"))


def test_a_finished_run_repeats_its_summary(train):
    first = train()
    second = train()
    assert first[0] == second[0] == 0 and first[1] == second[1]


@pytest.fixture
def copied(tiny, prompts, tmp_path):
    """Copy the model and the prompts to a folder. Return a function from its path to the options of a training."""
    shutil.copytree(tiny, tmp_path / "before")
    shutil.copy(prompts, tmp_path / "before")
    return lambda folder: {"model": folder / "target", "prompts": folder / "prompts.txt"}


def test_a_run_resumes_with_another_spelling_of_its_paths(train, copied, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "before")
    monkeypatch.chdir(tmp_path)
    for folder in (Path("before"), tmp_path / "before", tmp_path / "link", Path("link", "..", "before")):
        code, _, err = train(**copied(folder))
        assert code == 0, err


def test_a_run_resumes_after_its_files_were_moved(train, copied, tmp_path):
    """A model with another name, or a second folder with the same name, may be another model."""
    assert train(**copied(tmp_path / "before"))[0] == 0
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    assert "was started with model " in train(**copied(tmp_path / "after"))[2]
    shutil.rmtree(tmp_path / "before")
    assert train(**copied(tmp_path / "after"))[0] == 0
    (tmp_path / "after" / "target").rename(tmp_path / "after" / "another")
    other = copied(tmp_path / "after") | {"model": tmp_path / "after" / "another"}
    assert "was started with model " in train(**other)[2]


def test_cached_features_do_not_change_the_weights(train, tmp_path):
    for name, size in (("cached", 1), ("computed", 0)):
        assert train(tmp_path / name, cache_gb=size, steps=9)[0] == 0
    cached = weights(tmp_path / "cached")
    computed = weights(tmp_path / "computed")
    assert list((tmp_path / "cached" / "training" / "features").iterdir())
    assert not (tmp_path / "computed" / "training" / "features").exists()
    assert all(torch.allclose(cached[name], computed[name], atol=1e-3) for name in cached)


# ---- invalid input ------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, message",
    [
        ({"steps": -1}, "--steps is -1; it must be 1 or more."),
        ({"temperature": -1}, "temperature is -1.0; it must be a number from 0 to 100."),
        (
            {"validation_prompts": 24},
            "has 24 captions, but 27 are needed: 24 for measuring (--validation-prompts) and 3 for one step "
            "(--training-batch-size)",
        ),
        (
            {"training_images": 2},
            "gives 2 images to train on, but one step needs 3 (--training-batch-size); increase --training-images.",
        ),
        ({"prompts": "no.txt"}, "--prompts: 'no.txt' can't be read"),
        (
            {"prompts": None, "images": "nowhere"},
            "--images: 'nowhere' is not a folder; choose a folder of images with captions, such as 1.jpg and 1.txt.",
        ),
    ],
)
def test_invalid_options(train, tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = train(**given)
    assert code == 2 and not out and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["compare", "start"])
@pytest.mark.parametrize(
    "name, message",
    [("jacobi", "--{}: 'jacobi' is not an EAGLE drafter"), ("nowhere", "drafter 'nowhere' does not exist")],
)
def test_other_drafters_are_checked_first(train, tmp_path, option, name, message):
    code, _, err = train(**{option: name})
    assert code == 1 and message.format(option) in err and err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_drafter_to_start_from_has_the_same_architecture(train, tiny, tmp_path):
    other = tmp_path / "without a norm"
    shutil.copytree(tiny / "drafter", other)
    weights = load_file(other / "model.safetensors")
    del weights["layers.0.input_layernorm.weight"]
    save_file(weights, other / "model.safetensors")
    code, _, err = train(start=other)
    assert code == 1 and "--start: this drafter has another architecture than the one to train" in err
    assert err.count("\n") == 1 and not (tmp_path / "out" / "training").exists()


def test_invalid_images(train, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    assert "contains no .jpg, .jpeg, .png, .webp" in train(prompts=None, images=folder)[2]
    for i in range(6):
        (folder / f"{i}.png").write_bytes(b"no image")
    assert "has no caption; write what it shows in 0.txt next to it." in train(prompts=None, images=folder)[2]
    for i in range(6):
        (folder / f"{i}.txt").write_text("a house", encoding="utf-8")
    code, _, err = train(prompts=None, images=folder)
    assert code == 1 and "can't be read as an image" in err and "remove it or save it again." in err


def test_output_folders_with_other_content(train, tiny, tmp_path):
    assert "contains a model that was not trained here" in train(tiny / "target")[2]
    assert train()[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    code, _, err = train(guidance_scale=2)
    advice = "use the same options to resume it, or choose another folder."
    assert code == 2 and f"was started with guidance_scale 3.0, but now it is 2.0; {advice}" in err
    assert "was started with dtype float32, but now it is bfloat16" in train(dtype="bfloat16")[2]
    assert "was started with exact on, but now it is off" in train(exact="off")[2]
    assert "was started with validation_prompts 2, but now it is 3" in train(validation_prompts=3)[2]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


# ---- families --------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("layout", [*sorted(WRITERS.keys() - {"chameleon", "llamagen"}), "llamagen, authors'"])
def test_training_for_every_family(train, tmp_path, layout):
    """The families have end-of-row tokens, text encoders, 2D rotary positions, or heads with a hidden layer."""
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
