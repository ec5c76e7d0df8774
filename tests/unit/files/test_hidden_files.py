"""Tests that files with hidden names are never images, captions, lists or weights.

macOS stores attributes of `1.jpg` in `._1.jpg` if the file system cannot store them (exFAT, SMB), and in zip archives.
"""

import shutil

import numpy as np
import pytest
from PIL import Image

from adt_core import Drafting, Pipeline, Recipe, Sampling
from adt_core.files import list_visible
from adt_core.lab import quality
from adt_core.lab.training.dataset import find_captioned
from adt_core.models.reading.checkpoint import Checkpoint
from adt_core.models.reading.paths import weight_files
from adt_core.models.unsupported import refuse_layout
from adt_core.run.jobs import JobList, PromptEntry
from adt_core.run.model_files import checkpoint_files, is_target_file
from adt_core.run.store import Identity, PngStore
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(4056)
"""Content of such a file: the beginning of the format AppleDouble."""


def hide(folder, *names):
    """Write a hidden file next to each name, as macOS does."""
    for name in names:
        (folder / name).with_name(f"._{(folder / name).name}").write_bytes(APPLE_DOUBLE)


def test_visible_files_are_listed_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.jpg", "sub/d.txt", ".cache/e.txt", "__MACOSX/._a.txt", ".a.txt", "._b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_visible(tmp_path, "*.txt") == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert [path.name for path in list_visible(tmp_path, "**/*.txt")] == ["a.txt", "b.txt", "d.txt"]
    hidden = tmp_path / ".cache"
    assert list_visible(hidden, "*") == [hidden / "e.txt"], "the user has chosen this folder, although it is hidden"
    assert list_visible(tmp_path / "missing", "*") == []


def test_a_list_is_not_generated_again_over_hidden_files(models, tmp_path):
    pipeline = Pipeline(models[0], Recipe(Sampling(seed=3), Drafting("no-drafting")))
    jobs = JobList([PromptEntry("1", "a cat")], pipeline.recipe)
    store = PngStore(jobs, tmp_path, Identity.of(pipeline))
    *_, progress = pipeline.run(list(jobs))
    (finished,) = progress.finished
    result = finished.result(**finished.listed(store.identity.key))
    store.add(finished.job, result.png, result.record)
    hide(tmp_path, "000001.png")
    assert store.missing() == []


def test_hidden_files_are_no_training_images(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "1.jpg")
    (tmp_path / "1.txt").write_text("a cat", encoding="utf-8")
    hide(tmp_path, "1.jpg", "1.txt")
    assert find_captioned(tmp_path) == ([tmp_path / "1.jpg"], ["a cat"])


def test_hidden_files_are_no_reference_images(tmp_path):
    (tmp_path / "__MACOSX").mkdir()
    for name in ("1.png", "2.png"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)
        hide(tmp_path / "__MACOSX", name)
    hide(tmp_path, "1.png")
    assert quality._real_images(tmp_path, 2) == [tmp_path / "1.png", tmp_path / "2.png"]


@pytest.mark.parametrize(
    "names",
    [["anole.safetensors"], ["a-1-of-2.safetensors", "a-2-of-2.safetensors"], ["pytorch_model_ema.bin"]],
    ids=["one file", "shards", "pickle"],
)
def test_hidden_files_are_no_weights(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"weights")
    hide(tmp_path, *names, "model.safetensors.index.json", "other.safetensors.index.json", "model.gguf")
    assert [path.name for path in weight_files(tmp_path)] == names
    refuse_layout(tmp_path)


def test_a_model_loads_next_to_hidden_files(tmp_path):
    """The companions of a model, such as its codec, are searched by patterns."""
    folder = write_tiny_checkpoint(tmp_path / "target")
    shutil.copy(folder / "model.safetensors", folder / "vqgan.safetensors")
    names = [path.name for path in folder.iterdir()]
    hide(folder, *names, "aaa.safetensors")
    checkpoint = Checkpoint(folder)
    assert checkpoint.find_companion(("*vqgan.safetensors",)) == folder / "vqgan.safetensors"
    assert not [path for path in checkpoint_files(folder, "target") if path.name.startswith(".")]


def test_a_hidden_file_is_no_model():
    assert is_target_file("t2i_XL_stage1_256.pt") and not is_target_file("._t2i_XL_stage1_256.pt")


def test_a_folder_of_hidden_files_is_empty(tmp_path):
    hide(tmp_path, "1.jpg", "model.safetensors")
    with raises_key("images.none"):
        find_captioned(tmp_path)
    assert weight_files(tmp_path) == []
