"""Tests of batch folders.

An image must not depend on the other images of its batch. It must be saved as soon as it is complete, and must never
be generated twice.
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from adt_core import Drafting, Lantern, Loading, Pipeline, Recipe, Sampling, cli, load_drafter, load_target
from adt_core.app import images
from adt_core.app.batch_folder import BatchFolder, SavedImage, batch_folder, settings_key
from adt_core.app.saved import read_saved
from adt_core.drafters import drafter_defaults
from adt_core.errors import AdtError
from adt_core.run.images import parameters_text, read_settings, to_png
from adt_core.run.pipeline import split
from adt_core.version import FORMAT
from tests.command import read_grids
from tests.tiny import write_tiny_checkpoint

PROMPTS = ["a cat", "a dog on a mat", "a cow", "seven geese", "an owl"]


@pytest.fixture
def make(models):
    """Return a pipeline with a drafter network."""
    target, drafter = models
    return Pipeline(
        target, Recipe(Sampling(seed=3, guidance=2.0), Drafting("adt-tree"), drafter="somewhere/tiny"), drafter
    )


def changed(pipeline: Pipeline, **settings) -> Pipeline:
    """Return a copy of the pipeline with other settings."""
    return replace(pipeline, recipe=replace(pipeline.recipe, **settings))


def run(
    make: Pipeline, prompts: list[str], folder, chunk: int, stop: int | None = None, texts: dict | None = None
) -> list[str]:
    """Generate the missing images in chunks. Stop after `stop` images. Return the prompts of the generated images."""
    made = []
    batch = BatchFolder(make, folder, texts or {})
    todo = [prompt for prompt in prompts if batch.find(prompt) is None]
    for stretch in split(len(todo), chunk):
        decoding = make.decoding([todo[number] for number in stretch], batch_size=chunk)
        with closing(decoding.finished()) as running:
            for finished in running:
                made += [batch.save(decoding, image, todo[stretch[image]]).prompt for image in finished]
                if stop is not None and len(made) >= stop:
                    return made
    return made


def codes(make: Pipeline, folder) -> list[torch.Tensor]:
    return [BatchFolder(make, folder).find(prompt).codes for prompt in PROMPTS]


def test_images_do_not_depend_on_the_batch(make, tmp_path):
    run(make, PROMPTS, tmp_path, chunk=3)
    for prompt, found in zip(PROMPTS, codes(make, tmp_path)):
        decoding = make.decoding([prompt], batch_size=1).run()
        assert torch.equal(found, decoding.grid_codes()[0])
        saved = BatchFolder(make, tmp_path).find(prompt)
        figures = saved.figures
        expected = decoding.trace.report()
        assert {name: figures[name] for name in ("tau", "mean_depth", "target_forwards", "tokens", "seed")} == {
            name: expected[name] for name in ("tau", "mean_depth", "target_forwards", "tokens", "seed")
        }
        assert figures["images_at_once"] == 3 and figures["drafter"] == "tiny" and figures["seconds"] > 0


@pytest.mark.parametrize("stop", [1, 3])
def test_a_stopped_batch_resumes(make, tmp_path, stop):
    """Resume with another chunk size and another drafter. Neither of them may change an image."""
    first = run(make, PROMPTS, tmp_path, chunk=2, stop=stop)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert stop <= len(first) == len(kept) < len(PROMPTS)
    other = replace(changed(make, drafter="jacobi"), drafter=load_drafter("jacobi", make.target))
    other = changed(other, drafting=Drafting.of(drafter_defaults("jacobi", "cpu")))
    assert settings_key(other) == settings_key(make)
    second = run(other, PROMPTS, tmp_path, chunk=4)
    assert sorted(first + second) == sorted(PROMPTS), "an image is missing or was generated twice"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept and len(list(tmp_path.iterdir())) == len(PROMPTS)
    run(make, PROMPTS, tmp_path / "complete", chunk=5)
    assert all(torch.equal(a, b) for a, b in zip(codes(make, tmp_path), codes(make, tmp_path / "complete")))
    assert run(make, [*PROMPTS, "a mouse"], tmp_path, chunk=5) == ["a mouse"]


@pytest.mark.parametrize("batch_size", [len(PROMPTS), 2])
def test_time_is_divided_among_active_images(make, batch_size):
    decoding = make.decoding(PROMPTS, batch_size=batch_size).run()
    parts = [decoding.trace.subset([image]).report() for image in range(len(PROMPTS))]
    assert len({part["target_forwards"] for part in parts}) > 1, "images must advance unequally for this test"
    total = decoding.trace.report()
    for name in ("seconds", "tokens", "verified_drafts", "drafting_seconds"):
        assert sum(part[name] for part in parts) == pytest.approx(total[name]), name
    assert (max(part["target_forwards"] for part in parts) == total["target_forwards"]) == (batch_size == len(PROMPTS))


def test_settings_that_change_images_change_the_folder(make, tiny, tmp_path):
    relaxed = changed(make, lantern=Lantern(delta=0.3))
    write_tiny_checkpoint(tmp_path / "target", scale=3.0, seed=5)
    others = [
        make,
        relaxed,
        changed(make, negative="a dog"),
        changed(make, suffix=" x"),
        changed(make, suffix=", best quality"),
        *(
            changed(make, sampling=replace(make.recipe.sampling, **change))
            for change in ({"seed": 4}, {"guidance": 3.0}, {"temperature": 0.5}, {"top_k": 9}, {"top_p": 0.5})
        ),
        replace(make, target=load_target(tiny / "target", dtype=torch.float32)),
        replace(make, target=load_target(tmp_path / "target", dtype=torch.float64)),
        changed(relaxed, lantern=Lantern(delta=0.2)),
        changed(relaxed, drafting=Drafting("adt-tree", depth=2)),
        replace(changed(relaxed, drafter="jacobi"), drafter=load_drafter("jacobi", make.target)),
    ]
    assert len({settings_key(other) for other in others}) == len(others)
    same = [
        changed(make, drafting=Drafting("adt-tree", depth=2)),
        replace(changed(make, drafting=Drafting(method="no-drafting")), drafter=None),
        changed(make, negative="  "),
        changed(make, loading=Loading(model="elsewhere")),
        replace(make, target=load_target(tiny / "target", dtype=torch.float64)),
    ]
    assert {settings_key(other) for other in same} == {settings_key(make)}


def test_the_drafter_changes_the_folder_under_lantern(make, tiny):
    relaxed = changed(make, lantern=Lantern())
    other = load_drafter(tiny / "drafter", make.target)
    assert settings_key(replace(relaxed, drafter=other)) == settings_key(relaxed)
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    assert settings_key(replace(relaxed, drafter=other)) != settings_key(relaxed)


def test_prompts_with_seeds(make, tmp_path):
    """A prompt that is in a list several times with different seeds must give one image per seed.

    Each image must equal the image of a list that contains only this prompt with this seed.
    """
    batch = BatchFolder(make, tmp_path)
    seeds = [3, 8, 2**64 - 1]
    decoding = make.decoding(["a cat"] * 3, seeds=seeds, batch_size=2).run()
    for image, seed in enumerate(seeds):
        batch.save(decoding, image, "a cat", seed, f"{image + 1}-id")
    assert len(list(tmp_path.iterdir())) == 3 and batch.find("a cat", 5) is None
    for image, seed in enumerate(seeds):
        single = changed(make, sampling=replace(make.recipe.sampling, seed=seed))
        saved = BatchFolder(make, tmp_path).find("a cat", seed)
        assert torch.equal(saved.codes, single.decoding(["a cat"]).run().grid_codes()[0])
        assert saved.seed == saved.figures["seed"] == read_settings(saved.path)["seed"] == seed
        assert saved.path.name.startswith(f"{image + 1}-id-a-cat-")
    assert BatchFolder(make, tmp_path).find("a cat").seed == make.recipe.sampling.seed == 3


def test_an_image_keeps_its_name(make, tmp_path):
    """An image must keep its name in another list, even if its position in the list differs."""
    batch = BatchFolder(make, tmp_path)
    decoding = make.decoding(["a cat"]).run()
    first = batch.save(decoding, 0, "a cat", place="1-x")
    assert BatchFolder(make, tmp_path).save(decoding, 0, "a cat", place="2-y").path == first.path
    assert list(tmp_path.iterdir()) == [first.path]


def test_saved_and_found_images_are_equal(make, tmp_path):
    made = BatchFolder(make, tmp_path).save(make.decoding(["a cat"]).run(), 0, "a cat")
    found = BatchFolder(make, tmp_path).find("a cat")
    with Image.open(made.path) as saved:
        assert (np.asarray(saved) == made.pixels).all() and (made.pixels == found.pixels).all()
    rows, columns = (side * make.target.downsample for side in make.target.grid)
    assert found.pixels.shape == (rows, columns, 3) and found.pixels.std() > 0


def black(saved: SavedImage) -> torch.Tensor:
    """Return black pixels of the image's size."""
    return torch.zeros(3, *saved.pixels.shape[:2])


@pytest.mark.parametrize("damage", ["cut", "cut short", "empty", "other grid", "other size", "no settings"])
def test_damaged_images_are_generated_again(make, tmp_path, damage):
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    sound = BatchFolder(make, tmp_path).find(PROMPTS[0])
    if damage.startswith("cut"):
        path.write_bytes(content[: len(content) // 4 if damage == "cut" else -100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other size":
        path.write_bytes(to_png(torch.zeros(3, 8, 8), read_settings(path)))
    else:
        settings = {**read_settings(path), "tokens": [[1, 2], [3, 4]]} if damage == "other grid" else {}
        path.write_bytes(to_png(black(sound), settings))
    assert run(make, PROMPTS[:1], tmp_path, chunk=1) == PROMPTS[:1]
    assert torch.equal(BatchFolder(make, tmp_path).find(PROMPTS[0]).codes, sound.codes)


def test_images_of_another_format_are_refused_and_kept(make, tmp_path, monkeypatch):
    """Also in a list of `generate`, which replaces them only with `overwrite`."""
    monkeypatch.setattr(images, "FORMAT", FORMAT + 1)
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    monkeypatch.undo()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    with pytest.raises(AdtError, match=f"has format {FORMAT + 1}, but this ADT-Tree reads format {FORMAT}; use the"):
        run(make, PROMPTS[:1], tmp_path, chunk=1)
    assert read_saved(path, {})[1] == f"has format {FORMAT + 1}, but this ADT-Tree reads format {FORMAT}"
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "tokens, figures",
    [
        (-1, {}),
        (10**6, {}),
        ("1", {}),
        (0, None),
        (0, {"tau": float("inf")}),
        (0, {"file": "../../secret.png"}),
    ],
)
def test_images_with_invalid_settings_are_generated_again(make, tmp_path, tokens, figures):
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    (path,) = tmp_path.iterdir()
    settings = read_settings(path)
    sound = BatchFolder(make, tmp_path).find(PROMPTS[0])
    settings["tokens"][0][0] = settings["tokens"][0][0] if tokens == 0 and type(tokens) is int else tokens
    settings["figures"] = settings["figures"] | figures if isinstance(figures, dict) else figures
    path.write_bytes(to_png(black(sound), settings))
    batch = BatchFolder(make, tmp_path)
    assert batch.find(PROMPTS[0]) is None and run(make, PROMPTS[:1], tmp_path, chunk=1) == PROMPTS[:1]
    assert torch.equal(batch.find(PROMPTS[0]).codes, sound.codes)


def test_decompression_bombs_are_generated_again(make, tmp_path, monkeypatch):
    run(make, PROMPTS[:1], tmp_path, chunk=1)
    batch = BatchFolder(make, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 8)  # Pillow treats this image as a decompression bomb
        assert batch.find(PROMPTS[0]) is None
    assert batch.find(PROMPTS[0]) is not None


def test_images_are_reproduced_from_their_pngs(make, tiny, tmp_path):
    make = changed(
        make,
        lantern=Lantern(neighbours=5, delta=0.3),
        negative="a dog",
        loading=Loading(model=str(tiny / "target")),
        drafter=str(tiny / "drafter"),
    )
    run(make, PROMPTS[:1], tmp_path, chunk=1, texts={"workflow": '{"nodes": []}'})
    saved = BatchFolder(make, tmp_path).find(PROMPTS[0])
    assert saved.path.name.startswith("a-cat-")
    models = ["--model", str(tiny / "target"), "--drafter", str(tiny / "drafter")]
    options = ["generate", "--from-png", str(saved.path), "--device", "cpu", *models]
    assert cli.main([*options, "--output", str(tmp_path / "again.png"), "--tokens", str(tmp_path / "again.json")]) == 0
    assert read_grids(tmp_path / "again.json") == [saved.codes.tolist()]
    with Image.open(saved.path) as image, Image.open(tmp_path / "again.png") as again:
        assert image.tobytes() == again.tobytes() and image.info["workflow"] == '{"nodes": []}'


def test_settings_for_other_programs(make, tmp_path):
    """Check the text chunk "parameters": prompt, "Negative prompt: ...", and a line that begins with "Steps"."""
    plain = changed(make, negative="a dog: wet, old", drafting=Drafting(method="no-drafting"))
    make = replace(plain, drafter=None)
    run(changed(make, drafter=None), PROMPTS[1:2], tmp_path, chunk=1)
    (path,) = tmp_path.iterdir()
    with Image.open(path) as image:
        *texts, line = image.info["parameters"].split("\n")
        size = f"{image.width}x{image.height}"
    assert texts == ["a dog on a mat", "Negative prompt: a dog: wet, old"]
    assert line.startswith(f"Steps: {make.target.length}, Sampler: no-drafting, CFG scale: 2.0, Seed: 3, Size: {size}")
    assert read_settings(path)["prompt"] == "a dog on a mat", "the text chunk with this pack's settings must be kept"


def test_texts_for_other_programs():
    settings = {"prompt": "小屋 a\0b", "image_tokens": 4, "image_index": 2, "model_name": "a, b: c"}
    text = parameters_text(settings, 8, 16)
    assert text.startswith('小屋 a b\nSteps: 4, Size: 8x16, Model: "a, b: c", Image index: 2, ')
    assert "Negative" not in text
    assert parameters_text({}, 8, 8) == parameters_text({"prompt": None}, 8, 8) == ""


def test_names_without_utf8(tmp_path):
    """A model's folder that was copied from another system may have a name that isn't UTF-8."""
    settings = {"prompt": "a cat", "model": "caf\udce9/model.pt", "model_name": "caf\udce9"}
    (tmp_path / "a.png").write_bytes(to_png(torch.zeros(3, 8, 8), settings))
    assert read_settings(tmp_path / "a.png") == {**settings, "format": FORMAT}
    with Image.open(tmp_path / "a.png") as saved:
        assert "Model: caf\\udce9" in saved.info["parameters"]


def test_relaxed_images_are_marked_for_other_programs():
    settings = {"prompt": "a", "method": "auto", "lantern_delta": 0.7, "lantern_lambda": None}
    assert "Sampler: auto, Relaxed: LANTERN, " in parameters_text(settings, 8, 8)
    settings["figures"] = {"substitution_rate": 0.031}
    assert "Relaxed: LANTERN (3.1 % of the tokens replaced), " in parameters_text(settings, 8, 8)
    assert "Relaxed" not in parameters_text({**settings, "lantern_delta": None}, 8, 8)


def test_names_of_folders(make, tmp_path):
    unique = settings_key(make)
    assert batch_folder(tmp_path, make) == tmp_path / f"{make.target.name}-{unique}"
    assert batch_folder(tmp_path, make, "Cats & dogs/2") == tmp_path / f"Cats-dogs-2-{unique}"
    assert batch_folder(tmp_path, make, "../..") == tmp_path / unique, (
        "a name without valid characters must be left out"
    )


def test_unwritable_folders_are_reported(make, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(AdtError, match="can't be written.*finished results were kept"):
        run(make, PROMPTS[:1], tmp_path / "file", chunk=1)
