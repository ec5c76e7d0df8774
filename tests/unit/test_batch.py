"""Batches of prompts: every image is what it would be alone, is kept at once, and is never made twice."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from adt_core import Drafting, Lantern, Sampling, cli, load_drafter, load_target
from adt_core.app import batch
from adt_core.app.batch import Batch
from adt_core.app.images import read_settings
from adt_core.drafters.jacobi import JacobiDrafter
from adt_core.errors import AdtError
from tests.tiny import write_tiny_checkpoint

PROMPTS = ["a cat", "a dog on a mat", "a cow", "seven geese", "an owl"]


@pytest.fixture
def make(models):
    """A batch with a network that drafts."""
    target, drafter = models
    return Batch(target, Sampling(seed=3, guidance=2.0), Drafting(), drafter, "tiny")


def run(batch: Batch, prompts: list[str], folder, chunk: int, stop: int | None = None) -> list[str]:
    """Make what is missing, ``chunk`` at once; ``stop`` after so many images. Returns the prompts whose images were made."""
    made = []
    todo = [prompt for prompt in prompts if batch.find(folder, prompt) is None]
    for finished in batch.run(batch.start(todo, chunk), todo, folder):
        made += [picture.prompt for picture, _ in finished]
        if stop is not None and len(made) >= stop:
            return made
    return made


def codes(batch: Batch, folder) -> list[torch.Tensor]:
    return [batch.find(folder, prompt).codes for prompt in PROMPTS]


def test_images_are_those_of_their_prompts_alone(make, tmp_path):
    run(make, PROMPTS, tmp_path, chunk=3)
    for prompt, found in zip(PROMPTS, codes(make, tmp_path)):
        decoding = make.start([prompt], 1)
        for _ in decoding:
            pass
        assert torch.equal(found, decoding.grid_codes()[0])
        picture = make.find(tmp_path, prompt)
        figures, expected = picture.figures, decoding.trace.report()
        assert {name: figures[name] for name in ("tau", "mean_depth", "target_forwards", "tokens", "seed")} == {
            name: expected[name] for name in ("tau", "mean_depth", "target_forwards", "tokens", "seed")
        }
        assert figures["images_at_once"] == 3 and figures["drafter"] == "tiny" and figures["seconds"] > 0


@pytest.mark.parametrize("stop", [1, 3])
def test_a_stopped_batch_goes_on(make, tmp_path, stop):
    """With other chunks and another drafter, which make the same images."""
    first = run(make, PROMPTS, tmp_path, chunk=2, stop=stop)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert stop <= len(first) == len(kept) < len(PROMPTS)
    other = replace(make, drafter=JacobiDrafter(), drafter_name="jacobi", drafting=JacobiDrafter.default)
    assert other.key() == make.key()
    second = run(other, PROMPTS, tmp_path, chunk=4)
    assert sorted(first + second) == sorted(PROMPTS), "an image was lost or made twice"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept and len(list(tmp_path.iterdir())) == len(PROMPTS)
    run(make, PROMPTS, tmp_path / "whole", chunk=5)
    assert all(torch.equal(a, b) for a, b in zip(codes(make, tmp_path), codes(make, tmp_path / "whole")))
    assert run(make, [*PROMPTS, "a mouse"], tmp_path, chunk=5) == ["a mouse"]


@pytest.mark.parametrize("at_once", [len(PROMPTS), 2])
def test_time_is_shared_by_the_images_at_work(make, at_once):
    decoding = make.start(PROMPTS, at_once)
    for _ in decoding:
        pass
    parts = [decoding.trace.part([image]).report() for image in range(len(PROMPTS))]
    assert len({part["target_forwards"] for part in parts}) > 1, "images advance unequally, or this tests little"
    whole = decoding.trace.report()
    for name in ("seconds", "tokens", "verified_nodes", "drafting_seconds"):
        assert sum(part[name] for part in parts) == pytest.approx(whole[name]), name
    assert (max(part["target_forwards"] for part in parts) == whole["target_forwards"]) == (at_once == len(PROMPTS))


def test_settings_that_change_images_have_a_folder_of_their_own(make, tiny, tmp_path):
    relaxed = replace(make, lantern=Lantern(delta=0.3))
    write_tiny_checkpoint(tmp_path / "target", scale=3.0, seed=5)
    others = [
        make,
        relaxed,
        replace(make, negative="a dog"),
        *(
            replace(make, sampling=replace(make.sampling, **change))
            for change in ({"seed": 4}, {"guidance": 3.0}, {"temperature": 0.5}, {"top_k": 9}, {"top_p": 0.5})
        ),
        replace(make, target=load_target(tiny / "target", dtype=torch.float32)),
        replace(make, target=load_target(tmp_path / "target", dtype=torch.float64)),
        replace(relaxed, lantern=Lantern(delta=0.2)),
        replace(relaxed, drafting=Drafting(depth=2)),
        replace(relaxed, drafter=JacobiDrafter(), drafter_name="jacobi"),
    ]
    assert len({other.key() for other in others}) == len(others)
    same = [
        replace(make, drafting=Drafting(depth=2)),
        replace(make, drafter=None, drafting=Drafting(method="autoregressive")),
        replace(make, negative="  "),
        replace(make, texts={"workflow": "{}"}),
        replace(make, target=load_target(tiny / "target", dtype=torch.float64)),
    ]
    assert {other.key() for other in same} == {make.key()}


def test_a_network_that_was_replaced_counts_under_lantern(make, tiny):
    relaxed = replace(make, lantern=Lantern())
    other = load_drafter(tiny / "drafter", make.target)
    assert replace(relaxed, drafter=other).key() == relaxed.key()
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    assert replace(relaxed, drafter=other).key() != relaxed.key()


@pytest.mark.parametrize("damage", ["cut", "cut short", "empty", "other grid", "no settings"])
def test_a_damaged_image_is_made_anew(make, tmp_path, damage):
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    (path,) = tmp_path.iterdir()
    whole, expected = path.read_bytes(), make.find(tmp_path, PROMPTS[0]).codes
    if damage.startswith("cut"):
        path.write_bytes(whole[: len(whole) // 4 if damage == "cut" else -100])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        settings = {**read_settings(path), "tokens": [[1, 2], [3, 4]]} if damage == "other grid" else {}
        batch.save_png(path, torch.zeros(3, 8, 8), settings)
    assert run(make, PROMPTS[:1], tmp_path, chunk=1) == PROMPTS[:1]
    assert torch.equal(make.find(tmp_path, PROMPTS[0]).codes, expected)


def test_a_png_carries_what_made_it_and_is_made_again_from_it(make, tiny, tmp_path):
    make = replace(
        make, lantern=Lantern(neighbours=5, delta=0.3), negative="a dog", texts={"workflow": '{"nodes": []}'}
    )
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    picture = make.find(tmp_path, PROMPTS[0])
    assert picture.path.name.startswith("a-cat-")
    options = [
        "generate",
        "--from-png",
        str(picture.path),
        "--model",
        str(tiny / "target"),
        "--drafter",
        str(tiny / "drafter"),
        "--device",
        "cpu",
    ]
    assert cli.main([*options, "--output", str(tmp_path / "again.png"), "--tokens", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["tokens"] == [picture.codes.tolist()]
    with Image.open(picture.path) as image, Image.open(tmp_path / "again.png") as again:
        assert image.tobytes() == again.tobytes() and image.info["workflow"] == '{"nodes": []}'


def test_a_folder_that_cannot_be_written_is_named(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AdtError, match="can't be written.*what is finished is kept"):
        run(make, PROMPTS[:1], tmp_path / "file", chunk=1)
