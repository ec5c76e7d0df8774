"""Tests of the choice of weights files in a folder. Files of another model must never be chosen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.models.load import target_of
from adt_core.models.reading import checkpoint
from adt_core.models.reading.checkpoint import Checkpoint
from adt_core.models.reading.paths import resolve, weight_files
from tests.layouts.emu3 import write_emu3
from tests.layouts.lumina import save_shards
from tests.raising import raises_key
from tests.tiny import write_tiny_drafter

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def put(folder: Path, *names: str) -> None:
    """Write empty weights files with these names."""
    for name in names:
        (folder / name).write_bytes(b"")


def write_index(folder: Path, *names: str, called: str = INDEX) -> None:
    content = {"weight_map": {f"tensor {number}": name for number, name in enumerate(names)}}
    (folder / called).write_text(json.dumps(content), encoding="utf-8")


def chosen(folder: Path) -> list[str]:
    return [file.name for file in weight_files(folder)]


# ---- choice by name or index -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, wanted",
    [
        (["model.safetensors"], ["model.safetensors"]),
        (["model.safetensors", "z.safetensors", "model.fp16.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model.safetensors", ONE, TWO], ["model.safetensors"]),
        (["anole.safetensors"], ["anole.safetensors"]),
        (["anole.safetensors", "pytorch_model.bin", "other.bin"], ["anole.safetensors"]),
        ([ONE, TWO], [ONE, TWO]),
        ([ONE, TWO, "zzz.safetensors", "model-00001-of-00002.fp16.safetensors"], [ONE, TWO]),
        (["a-1-of-2.safetensors", "a-2-of-2.safetensors"], ["a-1-of-2.safetensors", "a-2-of-2.safetensors"]),
        (["a.safetensors", "vqgan.safetensors", "vq_ds16_t2i.safetensors"], ["a.safetensors"]),
        (["pytorch_model.bin", "vqgan.safetensors", "pytorch_model_ema.bin"], ["pytorch_model.bin"]),
        (["pytorch_model_ema.bin"], ["pytorch_model_ema.bin"]),
        (["vqgan.safetensors"], ["vqgan.safetensors"]),
        (["movqgan_270M.safetensors", "other.pt"], ["movqgan_270M.safetensors"]),
        (["t2i_XL_stage1_256.pt"], []),
        ([], []),
    ],
    ids=range(15),
)
def test_choice_by_name(tmp_path, names, wanted):
    put(tmp_path, *names)
    assert chosen(tmp_path) == wanted


@pytest.mark.parametrize(
    "index, names",
    [
        (INDEX, [ONE, TWO]),
        (INDEX, ["b.safetensors", "a.safetensors"]),
        ("pytorch_model.bin.index.json", ["pytorch_model-1.bin", "pytorch_model-2.bin"]),
        ("diffusion_pytorch_model.safetensors.index.json", ["diffusion_pytorch_model-00001-of-00001.safetensors"]),
    ],
    ids=range(4),
)
def test_choice_by_index(tmp_path, index, names):
    put(tmp_path, *names, f"zzz{Path(names[0]).suffix}", f"aaa{Path(names[0]).suffix}")
    write_index(tmp_path, *names, called=index)
    assert chosen(tmp_path) == sorted(names)


def test_an_index_has_priority_over_a_file_named_model(tmp_path):
    put(tmp_path, ONE, TWO, "model.safetensors")
    write_index(tmp_path, ONE, TWO)
    assert chosen(tmp_path) == [ONE, TWO]


@pytest.mark.parametrize(
    "names, found",
    [
        (["b.safetensors", "a.safetensors"], "a.safetensors, b.safetensors"),
        (
            [*(f"a-0000{n}-of-00002.safetensors" for n in (1, 2)), "b.safetensors"],
            "a-00001-of-00002.safetensors, b.safetensors",
        ),
        ([ONE, TWO, "model-00001-of-00001.safetensors"], f"model-00001-of-00001.safetensors, {ONE}"),
        (["pytorch_model_a.bin", "pytorch_model_b.bin"], "pytorch_model_a.bin, pytorch_model_b.bin"),
        ([f"{letter}.safetensors" for letter in "abcdef"], "d.safetensors and 2 more"),
    ],
    ids=range(5),
)
def test_several_sets_without_a_choice(tmp_path, names, found):
    put(tmp_path, *names)
    with raises_key("weights.several_sets", names=found) as raised:
        weight_files(tmp_path)
    remedy = "pytorch_model.bin" if names[0].endswith(".bin") else "model.safetensors"
    assert str(raised.value).endswith(f"rename the right file to {remedy}.")


@pytest.mark.parametrize(
    "names, absent",
    [
        ([TWO], ONE),
        (["a-1-of-3.safetensors", "a-3-of-3.safetensors"], "a-2-of-3.safetensors"),
        ([ONE, "zzz.safetensors"], TWO),
        (["pytorch_model-00002-of-00002.bin"], "pytorch_model-00001-of-00002.bin"),
        (["a-00001-of-99999.safetensors"], "a-00005-of-99999.safetensors and 99994 more"),
    ],
    ids=range(5),
)
def test_missing_shards(tmp_path, names, absent):
    put(tmp_path, *names)
    with raises_key("index.missing_parts", missing=absent):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "b.safetensors", "", "."])
def test_an_index_must_name_files_of_its_folder(tmp_path, name):
    put(tmp_path, "a.safetensors")
    write_index(tmp_path, "a.safetensors", name)
    with raises_key("index.missing_files"):
        weight_files(tmp_path)


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}])
def test_an_index_without_files(tmp_path, content):
    (tmp_path / INDEX).write_text(json.dumps(content), encoding="utf-8")
    with raises_key("index.empty", index=INDEX):
        weight_files(tmp_path)


# ---- loading ---------------------------------------------------------------------------------------


def other_model(file: Path, like: Path) -> None:
    """Write weights of another model that have the same names and shapes."""
    save_file({name: value + 1 for name, value in load_file(like).items()}, file)


def loaded(folder: Path) -> torch.Tensor:
    return load_target(folder).decoder.head


@pytest.mark.parametrize("name", ["zzz.safetensors", "aaa.safetensors", "model2.safetensors"])
def test_a_file_of_another_model_is_ignored(target, name):
    before = loaded(target)
    other_model(target / name, target / "model.safetensors")
    assert torch.equal(loaded(target), before)
    assert inspect(str(target))[0]["files"] == ["model.safetensors"]


def test_a_file_of_another_model_is_ignored_with_an_index(tmp_path):
    folder = write_emu3(tmp_path / "target")
    before = loaded(folder)
    other_model(folder / "zzz.safetensors", folder / TWO)
    assert torch.equal(loaded(folder), before)
    (folder / INDEX).unlink()
    assert torch.equal(loaded(folder), before)


def test_another_file_next_to_a_drafter_is_ignored(target, tmp_path):
    folder = write_tiny_drafter(tmp_path / "drafter", target)
    model = load_target(target)
    before = load_drafter(folder, model).fc
    other_model(folder / "zzz.safetensors", folder / "model.safetensors")
    assert torch.equal(load_drafter(folder, model).fc, before)
    (folder / "model.safetensors").rename(folder / "aaa.safetensors")
    with raises_key("weights.several_sets", folder="drafter", names="aaa.safetensors, zzz.safetensors"):
        load_drafter(folder, model)


def test_one_tensor_in_two_files_of_one_model(tmp_path):
    folder = write_emu3(tmp_path / "target")
    name = min(load_file(folder / ONE))
    save_file({**load_file(folder / TWO), name: torch.zeros(1)}, folder / TWO)
    with raises_key("tensor.two_files", file=folder / ONE, other=folder / TWO, tensor=name):
        load_target(folder)
    (folder / INDEX).unlink()
    with raises_key("tensor.two_files"):
        load_target(folder)


def test_a_file_that_does_not_belong_to_the_folders_model(target):
    """If the loader accepted the path of this file, it would load the folder's model, which is in another file."""
    other_model(target / "model2.safetensors", target / "model.safetensors")
    assert resolve(target / "model.safetensors", "target") == target
    with raises_key("path.not_weights", path="model2.safetensors"):
        load_target(target / "model2.safetensors")
    (target / "model.safetensors").unlink()
    assert resolve(target / "model2.safetensors", "target") == target
    assert Checkpoint(target).files == [target / "model2.safetensors"]


@pytest.mark.parametrize(
    "layout", ["chameleon", "lumina", "lumina-mgpt-2", "emu3", "glm-image", "janus", "janus, deepseek", "liquid"]
)
def test_published_layouts_are_read_as_before(written, layout):
    """All weights files in these folders belong to the model."""
    path = written(layout)
    path = path / "vision_language_encoder" if layout == "glm-image" else path
    assert weight_files(path) == sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux' list of mapped files")
def test_only_the_files_of_a_parameter_are_mapped(target, monkeypatch):
    """Each mapped file takes address space, which `ulimit -v` limits."""
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    save_shards(target, tensors, 4)
    monkeypatch.setattr(checkpoint, "MOST_MAPPED", 0)
    mapped = []

    def count(entry):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        mapped.append((len({line.split()[-1] for line in lines if str(target) in line}), len(entry.names)))

    target_of(Checkpoint(target), "cpu", torch.float32, filled=count)
    assert len(mapped) > 10 and all(files <= tensors + 1 for files, tensors in mapped), "one was read before"


ADDRESS_SPACE = """
import resource, sys
from adt_core import AdtError, load_target
import psutil
load_target("bundled")  # libraries take address space, too
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + int(sys.argv[1]) * 2**20,) * 2)
try:
    load_target("bundled")
except AdtError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' limits of a process")
def test_a_model_that_the_address_space_has_no_room_to_read_is_refused_before(tmp_path):
    """The bundled model has 43 MiB of weights in float32, and a file of 21 MiB."""
    line = [sys.executable, "-c", ADDRESS_SPACE]
    root = Path(__file__).resolve().parents[3]
    small, large = (subprocess.run([*line, size], cwd=root, capture_output=True, text=True) for size in ("50", "400"))
    assert "is mapped while it is read, but 'ulimit -v' leaves this process 0.0 GiB; raise this limit." in small.stdout
    assert (large.stdout, large.returncode) == ("", 0), large.stderr
