"""Tests of the pipeline, the front door of the library."""

import copy
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from adt_core import Drafting, Pipeline, Recipe, Sampling, cli, load_drafter
from adt_core.drafters import Drafter
from adt_core.drafters.jacobi import JacobiDrafter
from adt_core.recipe import Loading
from adt_core.run import pipeline
from adt_core.run.images import read_settings, to_png
from adt_core.run.options import ImageOptions, LoadingOptions, PngOptions
from adt_core.run.pipeline import SET_BY_LOAD
from adt_core.run.previews import BLANK
from adt_core.run.store import Identity
from adt_core.runtime import get_runtime
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ["a boat", "a lamp", "three small dogs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("target"), resolution=64, max_positions=300)


@pytest.fixture(scope="module")
def pipe(folder):
    return Pipeline.load(folder, device="cpu", dtype="float64")


def test_a_text_gives_one_result_with_image_tokens_and_trace(pipe):
    result = pipe.generate("a boat", seed=1)
    rows, columns = pipe.target.grid
    assert result.tokens.shape == (rows, columns) and result.image.size == (64, 64)
    assert result.trace.report()["tokens"] == pipe.target.length and result.prompt == "a boat"


def test_the_image_depends_only_on_text_and_seed(pipe):
    first = pipe.generate(TEXTS, batch_size=2, seed=1)
    alone = pipe.generate(TEXTS[2], seed=1, image_index=2, method="no-drafting")
    assert [result.prompt for result in first] == TEXTS
    assert first[2].tokens.equal(alone.tokens) and not alone.tokens.equal(pipe.generate(TEXTS[2], seed=2).tokens)


def test_a_result_is_short_and_shows_its_image_in_a_notebook(pipe):
    result = pipe.generate("a boat", method="no-drafting")
    assert len(repr(result)) < 100 and len(repr(pipe)) < 1000 and "a boat" in repr(result)
    assert result._repr_png_() == result.png


def test_numbers_of_other_libraries_are_accepted(pipe):
    """A generator can yield the texts."""
    seeds = np.array([4, 5])
    options = {"top_k": torch.tensor(9), "temperature": np.float32(0.5)}
    found = pipe.generate((text for text in TEXTS[:2]), np.int64(2), seed=seeds, **options)
    plain = pipe.generate(TEXTS[:2], 2, seed=[4, 5], top_k=9, temperature=0.5)
    names = "seed", "top_k", "temperature"
    for one, other in zip(found, plain, strict=True):
        assert one.tokens.equal(other.tokens) and all(one.record[name] == other.record[name] for name in names)


def test_types_name_the_declared_options():
    assert ImageOptions.__annotations__.keys() == set(Recipe.names()) - set(SET_BY_LOAD)
    assert PngOptions.__annotations__.keys() == set(Recipe.names())
    assert LoadingOptions.__annotations__.keys() == Loading.fields().keys() - {"model", "dtype", "weights"}


def test_options_of_a_pipeline_made_of_loaded_models_replace_its_recipe(pipe):
    made = Pipeline(pipe.target, Recipe(Sampling(seed=3), Drafting("adt-tree", depth=2)), pipe.drafter)
    changed = made.with_options(method="no-drafting", temperature=0.5).recipe
    assert changed.sampling == Sampling(seed=3, temperature=0.5) and changed.drafting.method == "no-drafting"
    with raises_key("method.no_option", input="depth"):
        made.with_options(method="no-drafting", depth=2)


def test_stream_yields_each_image_once_and_previews(pipe):
    results = {}
    done = []
    for step in pipe.stream(TEXTS, batch_size=2, method="no-drafting"):
        assert not results.keys() & step.results.keys()
        results |= step.results
        done.append(step.done)
        if len(done) == 3:
            previews = step.preview()
            assert sorted(previews) == [0, 1] and previews[0].size == (64, 64)
            assert previews[0].getpixel((63, 63)) == BLANK, "only complete rows are shown"
    assert sorted(results) == [0, 1, 2] and done == sorted(done) and done[-1] == step.total


def test_a_closed_stream_leaves_the_pipeline_usable(pipe):
    steps = pipe.stream(TEXTS)
    next(steps)
    steps.close()
    assert pipe.generate("a boat", seed=1).tokens.equal(pipe.generate("a boat", seed=1).tokens)


def test_check_cancels(pipe):
    with pytest.raises(KeyboardInterrupt):
        pipe.generate("a boat", check=Mock(side_effect=KeyboardInterrupt))


def test_the_saved_png_repeats_the_image(pipe, folder, tmp_path):
    result = pipe.generate("a boat", seed=4, temperature=0.7)
    result.save(tmp_path / "boat.png")
    assert read_settings(tmp_path / "boat.png")["temperature"] == 0.7
    again = Pipeline.from_png(tmp_path / "boat.png", device="cpu", model=folder)
    assert again.tokens.equal(result.tokens) and again.png[:8] == result.png[:8]


def test_a_loaded_model_repeats_images_with_any_method(pipe, folder, tmp_path, monkeypatch):
    """No model may be loaded again, and a PNG of another model or precision is refused."""
    png = tmp_path / "boat.png"
    result = pipe.generate("a boat", seed=4, temperature=0.7, method="adt-tree", depth_max=9)
    result.save(png)
    other = Pipeline.load("bundled", device="cpu")
    single = Pipeline.load(folder, device="cpu", dtype="float32")
    monkeypatch.setattr("adt_core.run.pipeline.load_target", None)
    assert pipe.repeat(png).png == result.png
    plain = pipe.repeat(png, method="no-drafting")
    assert plain.tokens.equal(result.tokens) and plain.record["method"] == "no-drafting"
    assert not pipe.repeat(png, seed=5).tokens.equal(result.tokens)
    for wrong, part, here in (other, "model name", "'bundled'"), (single, "dtype", "'float32'"):
        with raises_key("png.other_model", part=part, here=here):
            wrong.repeat(png)


@pytest.mark.parametrize(("name", "value"), [("temperature", -1.0), ("method", "magic"), ("prompt", 7), ("seed", "x")])
def test_invalid_values_in_a_png_are_refused(pipe, folder, tmp_path, name, value):
    """Anybody may have written the PNG."""
    png = to_png(torch.zeros(3, 8, 8), {**pipe.settings("a boat"), name: value})
    (tmp_path / "a.png").write_bytes(png)
    with raises_key("png.bad_value", path="a.png", name=name):
        Pipeline.from_png(tmp_path / "a.png", "cpu", model=folder)


def test_options_replace_those_of_a_png(pipe, folder, tmp_path):
    result = pipe.generate("a boat", seed=4)
    result.save(tmp_path / "boat.png")
    again = Pipeline.from_png(tmp_path / "boat.png", "cpu", model=folder, method="no-drafting")
    assert again.tokens.equal(result.tokens) and again.record["method"] == "no-drafting"
    with raises_key("option.unknown", name="'metod'"):
        Pipeline.from_png(tmp_path / "boat.png", "cpu", model=folder, metod="no-drafting")


class OwnDrafter(Drafter):
    """Drafter of another program."""


@pytest.mark.parametrize(
    ("drafter", "name"),
    [(OwnDrafter, "OwnDrafter"), (lambda: load_drafter("jacobi", None), "jacobi"), (JacobiDrafter, "bundled")],
)
def test_a_png_names_the_drafter_that_was_used(drafter, name):
    """The name in the recipe is used only if a part of this package has made the drafter."""
    bundled = Pipeline.load("bundled", device="cpu")
    own = Pipeline(bundled.target, bundled.recipe, drafter())
    assert own.settings("a boat")["drafter"] == name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pipeline_can_be_pickled_after_an_image(folder, dtype):
    pipe = Pipeline.load(folder, device="cpu", dtype=dtype)
    result = pipe.generate("a boat", seed=1)
    copied = pickle.loads(pickle.dumps(pipe)), copy.deepcopy(pipe)
    assert all(one.generate("a boat", seed=1).tokens.equal(result.tokens) for one in copied)
    assert pickle.loads(pickle.dumps(result)).png == result.png


def test_a_forked_process_uses_one_thread(pipe, monkeypatch, caplog, four_threads):
    pipe.generate("a boat", method="no-drafting")
    assert torch.get_num_threads() == 4
    monkeypatch.setattr(get_runtime(), "process", -1)
    pipe.generate("a boat", method="no-drafting")
    assert torch.get_num_threads() == 1 and "This process was forked" in caplog.text


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_generates_the_same_image(tmp_path):
    """The threads of OpenMP do not survive a fork. Without a limit, the child would wait for them without end."""
    program = (
        "import os, sys\n"
        "from adt_core import Pipeline\n"
        "pipe = Pipeline.load('bundled', device='cpu')\n"
        "png = pipe.generate('a red house', method='auto').png\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(pipe.generate('a red house', method='auto').png != png)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "was forked" in done.stderr and "'spawn'" in done.stderr


def test_the_command_line_gives_the_same_image(pipe, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--model", str(folder), "--dtype", "float64", "--device", "cpu", "--seed", "3", "--prompt", "a boat"]
    assert cli.main(["generate", *options, "--output", "boat.png", "--tokens", "tokens.json"]) == 0
    again = Pipeline.from_png("boat.png", device="cpu", model=folder)
    assert again.tokens.equal(pipe.generate("a boat", seed=3).tokens)


@pytest.mark.parametrize(
    "call, key, values",
    [
        (lambda pipe: pipe.generate("a boat", sed=1), "option.unknown", {"name": "'sed'", "names": "seed"}),
        (lambda pipe: pipe.generate("a boat", dtype="float32"), "pipeline.load_option", {"input": "dtype"}),
        (lambda pipe: pipe.generate("  "), "prompt.empty", {}),
        (lambda pipe: pipe.generate(TEXTS, batch_size=0), "setting.whole_number", {"input": "batch_size", "low": "1"}),
        (lambda pipe: next(pipe.stream("a boat")), "prompts.one_text", {"text": "'a boat'"}),
        (lambda pipe: pipe.generate("a boat", temperature=-1), "setting.number", {"input": "temperature"}),
        (lambda pipe: pipe.generate(None), "text.expected", {"input": "prompt", "value": "None"}),
        (lambda pipe: pipe.generate(TEXTS, seed=[1, 2]), "seed.lengths", {"count": 2, "texts": 3}),
        (lambda pipe: pipe.generate(TEXTS, seed=[1, 2, -3]), "setting.whole_number", {"input": "seed", "value": "-3"}),
        (lambda pipe: pipe.generate(["a boat", 1]), "text.expected", {"input": "prompt", "value": "1"}),
        (lambda pipe: pipe.generate("a boat", batch_size="2"), "setting.whole_number", {"value": "'2'"}),
        (lambda pipe: pipe.generate("a boat", num_images_per_prompt=2.5), "setting.whole_number", {"value": "2.5"}),
        (lambda pipe: pipe.generate("a boat", seed=np.float64(2.5)), "setting.whole_number", {"input": "seed"}),
        (lambda pipe: pipe.generate("a boat").save("boat.jpg"), "path.not_png", {}),
        (lambda pipe: Pipeline.load("no such model"), "model.no_file", {"path": "'no such model'"}),
        (lambda pipe: Pipeline.load(device="cpu", device_memory=-1), "setting.least", {"value": "-1"}),
        (lambda pipe: Pipeline.load("Janus-Pro-1B"), "model.not_installed", {"command": "download Janus-Pro-1B"}),
        (lambda pipe: Pipeline.load("bundled", device="cpu", sise=3), "option.unknown", {"name": "'sise'"}),
    ],
)
def test_errors_name_the_input_and_what_is_valid(pipe, call, key, values, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with raises_key(key, **values):
        call(pipe)


def test_device_memory_reaches_the_loader_and_no_setting_of_the_image(folder, monkeypatch):
    limits = []
    load_target = pipeline.load_target

    def recording(*arguments, device_memory=None, **options):
        limits.append(device_memory)
        return load_target(*arguments, **options)

    monkeypatch.setattr(pipeline, "load_target", recording)
    pipes = [Pipeline.load(folder, device="cpu", device_memory=limit) for limit in (None, 6, np.float32(0.5))]
    assert limits == [None, 6 * 2**30, 2**29]
    assert pipes[0].recipe == pipes[1].recipe
    assert Identity.of(pipes[0]).key == Identity.of(pipes[1]).key
    assert not {"device_memory", "memory"} & set(pipes[1].generate("a boat", method="no-drafting").record)


def test_the_bundled_model_has_its_published_settings():
    pipeline = Pipeline.load("bundled", device="cpu")
    assert (pipeline.recipe.sampling.temperature, pipeline.recipe.sampling.guidance_scale) == (0.6, 2.0)
    assert pipeline.recipe.drafting.method == "auto" and pipeline.drafter is not None
    assert pipeline.target.decoder.dtype == torch.float32


@pytest.mark.long
def test_the_program_in_the_readme_gives_the_image_of_the_command_line(tmp_path):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## From Python")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    run(["-c", code], tmp_path)
    run(["-m", "adt_core", "generate", "--prompt", "a red house", "--seed", "1", "--output", "again.png"], tmp_path)
    pixels = [Image.open(tmp_path / name).tobytes() for name in ("house.png", "again.png")]
    assert pixels[0] == pixels[1]


def run(arguments, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ADT_TREE_CACHE": str(folder / "cache")}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
