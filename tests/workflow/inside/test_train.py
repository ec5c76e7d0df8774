"""Tests of Train Drafter: training from a list of prompts, use of the drafter by name, cancelling and resuming."""

import random
import sys

import numpy as np
import pytest
import torch
from small import QUICK

from tests.raising import raises_key

pytestmark = pytest.mark.long
PROMPTS = [f"{colour} {thing}" for colour in ("red", "green", "blue") for thing in ("house", "ball", "tent", "car")]


@pytest.fixture
def train(pack, small):
    """Return a function that runs the node in the same way as ComfyUI: in inference mode, with lists as inputs."""

    def run(name: str, prompts: list = PROMPTS, **inputs) -> tuple:
        single = {"model": small.model, "name": name, **QUICK, "steps": 4, **inputs}
        with torch.inference_mode():
            lists = {name: [value] for name, value in single.items()}
            return pack.run("ADTTreeTrainDrafter", **lists | {"prompts": prompts})

    return run


def weights(pack, name: str) -> bytes:
    return (pack.base / "models" / "ar_image_drafters" / name / "model.safetensors").read_bytes()


def test_trained_drafter_is_listed_and_lossless(pack, small, train, caplog):
    """A sampler has left tensors of inference mode before. The global random state must not change."""
    before = small.vectors()
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with caplog.at_level("INFO"):
        drafter, curve, figures = train("first")
    assert random.getstate() == states[0] and (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    (record,) = (one for one in caplog.records if one.message.startswith("ADT-Tree: The training takes about "))
    assert record.message.endswith(" GiB of disk.")
    assert {one.levelname for one in caplog.records} == {"INFO"}, "an estimate is no warning"
    assert curve.shape == (1, 400, 640, 3) and 0 <= curve.min() < curve.max() <= 1 and ": 4 steps in " in figures
    _, options = pack.ours["ADTTreeDrafterLoader"]["input"]["optional"]["drafter"]
    assert "first" in options["options"]
    (found,) = small.run("ADTTreeDrafterLoader", drafter="first")
    assert found.path == drafter.path
    for loaded in (drafter, found):
        np.testing.assert_array_equal(small.vectors(drafter=loaded, settings={"method": "eagle2"}), before)


def test_training_resumes_after_cancelling(pack, train, monkeypatch, caplog):
    """The weights must equal those of an uninterrupted training. The log must state how much is kept."""
    module = sys.modules[pack.nodes["ADTTreeTrainDrafter"].__module__]
    monkeypatch.setattr(module, "MEASURED", 2)
    train("complete")

    def cancels(method: str, reached) -> None:
        def cancel(self, *done) -> None:
            if reached(*done):
                raise pack.Cancelled

        with monkeypatch.context() as patch, pytest.raises(pack.Cancelled), caplog.at_level("INFO"):
            patch.setattr(module._NodeWatch, method, cancel)
            train("stopped")

    cancels("on_images", lambda done, total: done > 3)
    cancels("on_step", lambda run, log: run.step == 1)
    cancels("on_step", lambda run, log: run.step == 3 and len(log) == 1)
    told = [line for line in caplog.messages if line.endswith("Press Run to continue.")]
    assert told == [f"ADT-Tree: {kept} kept. Press Run to continue." for kept in ("3 of 6 images", "1 step", "3 steps")]
    train("stopped")
    assert weights(pack, "stopped") == weights(pack, "complete")


def test_prompts_are_typed_or_read_from_a_file(pack, train):
    """A list, typed lines and a file with the same prompts must train the same drafter."""
    (pack.base / "input" / "lessons.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    train("list")
    for name, prompts in (("lines", ["\n".join(PROMPTS)]), ("file", ["lessons.txt"])):
        train(name, prompts)
        assert weights(pack, name) == weights(pack, "list")


@pytest.mark.parametrize(
    "inputs, key, values",
    [
        ({"prompts": ["a cat", "a dog"]}, "training.too_few_captions", {"source": "prompts: 'the list'", "count": 2}),
        ({"name": "small"}, "output.other_model", {"folder": "small"}),
        (
            {"steps": 3, "seed": 5, "name": "first"},
            "output.other_options",
            {"folder": "first", "options": "seed 0, but now it is 5"},
        ),
        ({"start": "jacobi"}, "drafter.no_eagle", {"input": "start", "path": "jacobi"}),
    ],
)
def test_bad_inputs(pack, small, train, inputs, key, values):
    if "start" in inputs:
        inputs = {**inputs, "start": small.drafters["jacobi"]}
    with raises_key(key, **values):
        train(**{"name": "refused", **inputs})
