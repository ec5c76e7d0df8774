"""Tests of lists: the noise of their images, and the store that keeps and recognises the images.

An image must not depend on the other images of its batch. It must be saved as soon as it is complete, and must never
be generated twice.
"""

import os
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from adt_core import Drafting, Lantern, Loading, Pipeline, Recipe, Sampling, cli, load_drafter, load_target
from adt_core.drafters import drafter_defaults
from adt_core.run import identity, images
from adt_core.run.identity import settings_key
from adt_core.run.images import parameters_text, read_settings, to_png
from adt_core.run.jobs import JobList, PromptEntry
from adt_core.run.store import Identity, PngStore
from adt_core.version import FORMAT
from tests.command import read_grids
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

PROMPTS = ["a cat", "a dog on a mat", "a cow", "seven geese", "an owl"]


@pytest.fixture
def make(models):
    target, drafter = models
    recipe = Recipe(Sampling(seed=3, guidance_scale=2.0), Drafting("adt-tree"), drafter="somewhere/tiny")
    return Pipeline(target, recipe, drafter)


def changed(pipeline: Pipeline, **settings) -> Pipeline:
    return replace(pipeline, recipe=replace(pipeline.recipe, **settings))


def entries(prompts: list[str], seeds: list[int | None] | None = None) -> list[PromptEntry]:
    seeds = seeds or [None] * len(prompts)
    return [PromptEntry(str(number), text, seed) for number, (text, seed) in enumerate(zip(prompts, seeds), start=1)]


def store_of(make: Pipeline, folder, prompts=PROMPTS, **options) -> PngStore:
    options = {"seeds": None, "same_noise": False, **options}
    jobs = JobList(entries(prompts, options["seeds"]), make.recipe, same_noise=options["same_noise"])
    return PngStore(jobs, folder, Identity.of(make), options.get("overwrite", False))


def run(
    store: PngStore, make: Pipeline, batch_size: int, stop: int | None = None, texts: dict | None = None
) -> list[int]:
    """Generate the missing images. Stop after `stop` images. Return the numbers of the generated images."""
    made: list[int] = []
    jobs = [store.jobs.job(number) for number in store.missing()]
    with closing(make.run(jobs, batch_size)) as running:
        for progress in running:
            for finished in progress.finished:
                result = finished.result(texts, **finished.listed(store.identity.key))
                store.add(finished.job, result.png, result.record)
                made.append(finished.job.number)
            if stop is not None and len(made) >= stop:
                return made
    return made


def codes(store: PngStore) -> list[list[list[int]]]:
    return [record["tokens"] for _, record in store.records()]


def test_images_do_not_depend_on_the_batch(make, tmp_path):
    store = store_of(make, tmp_path)
    assert sorted(run(store, make, batch_size=3)) == [1, 2, 3, 4, 5]
    for index, (prompt, (_, record)) in enumerate(zip(PROMPTS, store.records())):
        decoding = make.decoding([prompt], [index]).run()
        assert record["tokens"] == decoding.grid_codes()[0].tolist()
        report = decoding.trace.report()
        for name in ("tau", "mean_depth", "target_forwards", "tokens"):
            assert record["figures"][name] == report[name], name
        assert record["figures"]["seconds"] > 0 and record["prompt"] == prompt


@pytest.mark.parametrize("stop", [1, 3])
def test_a_stopped_list_resumes(make, tmp_path, stop):
    """Resume with another batch size and another drafter. Neither of them may change an image."""
    first = run(store_of(make, tmp_path), make, batch_size=2, stop=stop)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert stop <= len(first) == len(kept) < len(PROMPTS)
    other = replace(changed(make, drafter="jacobi"), drafter=load_drafter("jacobi", make.target))
    other = changed(other, drafting=Drafting.of(drafter_defaults("jacobi", "cpu", method=None)))
    assert settings_key(other) == settings_key(make)
    second = run(store_of(other, tmp_path), other, batch_size=4)
    assert sorted(first + second) == [1, 2, 3, 4, 5], "an image is missing or was generated twice"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept and len(list(tmp_path.iterdir())) == len(PROMPTS)
    whole = store_of(make, tmp_path / "complete")
    run(whole, make, batch_size=5)
    assert codes(store_of(make, tmp_path)) == codes(whole)
    assert run(store_of(make, tmp_path, [*PROMPTS, "a mouse"]), make, batch_size=5) == [6]


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
        changed(make, negative_prompt="a dog"),
        changed(make, suffix=" x"),
        changed(make, suffix=", best quality"),
        *(
            changed(make, sampling=replace(make.recipe.sampling, **change))
            for change in ({"seed": 4}, {"guidance_scale": 3.0}, {"temperature": 0.5}, {"top_k": 9}, {"top_p": 0.5})
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
        changed(make, negative_prompt="  "),
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


def test_noise_of_a_list(make, tmp_path):
    """Equal prompts of a list differ, a seed in the list wins, and each image can be generated without the others."""
    prompts = ["a cat"] * 4
    store = store_of(make, tmp_path, prompts, seeds=[None, None, 8, 2**64 - 1])
    run(store, make, batch_size=2)
    found = codes(store)
    assert len({str(tokens) for tokens in found}) == 4
    for tokens, (seed, index) in zip(found, [(3, 0), (3, 1), (8, 0), (2**64 - 1, 0)]):
        alone = changed(make, sampling=replace(make.recipe.sampling, seed=seed))
        assert tokens == alone.decoding(["a cat"], [index]).run().grid_codes()[0].tolist()
    same = store_of(make, tmp_path / "same", prompts, same_noise=True)
    run(same, make, batch_size=4)
    assert codes(same) == [found[0]] * 4


def test_noise_of_several_images_per_prompt(make):
    """The noise depends on the number of an image in the complete list, also in a shard."""
    jobs = JobList(entries(["a", "b", "c"], [None, 9, None]), make.recipe, 2, shard=(2, 2))
    assert [(job.number, job.seed, job.index) for job in jobs] == [(2, 3, 1), (4, 9, 1), (6, 3, 5)]


DAMAGES = {
    "cut": lambda content, path: content[: len(content) // 4],
    "cut short": lambda content, path: content[:-100],
    "empty": lambda content, path: b"",
    "other size": lambda content, path: to_png(torch.zeros(3, 8, 8), read_settings(path)),
    "other grid": lambda content, path: edited(path, tokens=[[1, 2], [3, 4]]),
    "negative token": lambda content, path: edited(path, tokens=[[-1] * 8] * 8),
    "text for a token": lambda content, path: edited(path, tokens=[["1"] * 8] * 8),
    "no statistics": lambda content, path: edited(path, figures=None),
    "infinite statistics": lambda content, path: edited(path, figures={"tau": float("inf")}),
    "no settings": lambda content, path: to_png(torch.zeros(3, 32, 32), {}),
}


def edited(path, **entries) -> bytes:
    return to_png(torch.zeros(3, 32, 32), {**read_settings(path), **entries})


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_images_are_refused_and_kept(make, tmp_path, damage):
    """Also files of another program with the name of an image."""
    store = store_of(make, tmp_path, PROMPTS[:1])
    run(store, make, batch_size=1)
    sound = codes(store)
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes(), path))
    content = path.read_bytes()
    with raises_key("output.other_image", path="000001.png"):
        store.missing()
    assert path.read_bytes() == content
    again = store_of(make, tmp_path, PROMPTS[:1], overwrite=True)
    assert run(again, make, batch_size=1) == [1] and codes(again) == sound


def test_images_of_another_format_are_refused_and_kept(make, tmp_path, monkeypatch):
    store = store_of(make, tmp_path, PROMPTS[:1])
    with monkeypatch.context() as patch:
        patch.setattr(images, "FORMAT", FORMAT + 1)
        run(store, make, batch_size=1)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    with raises_key("output.other_image", problem=f"has format {FORMAT + 1}, but this ADT-Tree reads format {FORMAT}"):
        store.missing()
    assert path.read_bytes() == content


def test_decompression_bombs_are_refused(make, tmp_path, monkeypatch):
    store = store_of(make, tmp_path, PROMPTS[:1])
    run(store, make, batch_size=1)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 8)  # Pillow treats this image as a decompression bomb
        with raises_key("output.other_image", path="000001.png"):
            store.missing()
    assert store.missing() == []


def test_links_in_a_list_are_replaced_and_never_followed(make, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "000001.png").symlink_to(secret)
    store = store_of(make, tmp_path / "list", PROMPTS[:1])
    assert run(store, make, batch_size=1) == [1] and store.missing() == []
    assert secret.read_bytes() == b"secret" and not (tmp_path / "list" / "000001.png").is_symlink()


def test_weights_are_compared_completely(tiny, tmp_path):
    """A model whose weights differ only after the beginning of each tensor is another model."""
    target = load_target(tiny / "target", dtype=torch.float64)
    before = settings_key(Pipeline(target))
    with torch.no_grad():
        target.decoder.embedding.flatten()[-1] += 1
    assert settings_key(Pipeline(target)) != before


def test_digests_of_large_weights_are_stored_until_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "CACHED_BYTES", 1)
    computed = []
    original = identity._tensors_digest
    monkeypatch.setattr(identity, "_tensors_digest", lambda *given: computed.append(1) or original(*given))
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"1")
    module = torch.nn.Linear(100, 2)
    first = identity.weights_digest("decoder", module, [file])
    assert identity.weights_digest("decoder", module, [file]) == first and len(computed) == 3, "twice the beginning"
    os.utime(file, ns=(1, 1))
    with torch.no_grad():
        module.weight[1, 99] += 1
    assert identity.weights_digest("decoder", module, [file]) != first and len(computed) == 5


def test_the_digest_of_weights_can_be_cancelled(tmp_path, monkeypatch):
    """Reading 14 GB takes many seconds, so the callback is called for each tensor, and nothing is stored."""
    monkeypatch.setattr(identity, "CACHED_BYTES", 1)
    stored = []
    monkeypatch.setattr(identity.cache_folder, "write", lambda *given: stored.append(given))
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"1")
    with pytest.raises(KeyboardInterrupt):
        check = Mock(side_effect=[None, KeyboardInterrupt])
        identity.weights_digest("decoder", torch.nn.Linear(100, 2), [file], check)
    assert not stored


def test_images_are_reproduced_from_their_pngs(make, tiny, tmp_path):
    models = {"loading": Loading(model=str(tiny / "target")), "drafter": str(tiny / "drafter")}
    make = changed(make, lantern=Lantern(neighbours=5, delta=0.3), negative_prompt="a dog", **models)
    store = store_of(make, tmp_path / "list", PROMPTS[:2])
    run(store, make, batch_size=1, texts={"workflow": '{"nodes": []}'})
    path = tmp_path / "list" / "000002.png"
    models = ["--model", str(tiny / "target"), "--drafter", str(tiny / "drafter")]
    options = ["generate", "--from-png", str(path), "--device", "cpu", *models]
    assert cli.main([*options, "--output", str(tmp_path / "again.png"), "--tokens", str(tmp_path / "again.json")]) == 0
    assert read_grids(tmp_path / "again.json") == [codes(store)[1]]
    with Image.open(path) as image, Image.open(tmp_path / "again.png") as again:
        assert image.tobytes() == again.tobytes() and image.info["workflow"] == '{"nodes": []}'


def test_settings_for_other_programs(make, tmp_path):
    """Check the text chunk "parameters": prompt, "Negative prompt: ...", and a line that begins with "Steps"."""
    plain = changed(make, negative_prompt="a dog: wet, old", drafting=Drafting(method="no-drafting"))
    make = replace(plain, drafter=None)
    run(store_of(make, tmp_path, PROMPTS[1:2]), make, batch_size=1)
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
    settings = {"prompt": "a", "method": "auto", "lantern_delta": 0.7, "lantern_factor": None}
    assert "Sampler: auto, Relaxed: LANTERN, " in parameters_text(settings, 8, 8)
    settings["figures"] = {"substitution_rate": 0.031}
    assert "Relaxed: LANTERN (3.1 % of the tokens replaced), " in parameters_text(settings, 8, 8)
    assert "Relaxed" not in parameters_text({**settings, "lantern_delta": None}, 8, 8)


def test_names_of_folders(tmp_path):
    assert images.named_folder(tmp_path, "12ab", "", "janus") == tmp_path / "janus-12ab"
    assert images.named_folder(tmp_path, "12ab", "Cats & dogs/2", "janus") == tmp_path / "Cats-dogs-2-12ab"
    assert images.named_folder(tmp_path, "12ab", "../..", "janus") == tmp_path / "12ab"


def test_unwritable_folders_are_reported(make, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    store = store_of(make, tmp_path / "file", PROMPTS[:1])
    with raises_key("file.not_writable"):
        run(store, make, batch_size=1)
