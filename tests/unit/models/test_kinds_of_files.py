"""Tests of weights files whose content doesn't match their name.

The loader must read them by their content, or raise an error that names the problem.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.models.reading.checkpoint import Checkpoint
from tests.layouts import llamagen
from tests.layouts.edits import check_refused, edit_config, edit_tensors
from tests.layouts.emu3 import write_emu3
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

WEIGHTS = "model.safetensors"
needs_links = pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="this system has no links")


@pytest.fixture
def drafter(tmp_path, target):
    return write_tiny_drafter(tmp_path / "drafter", target)


# ---- training checkpoints --------------------------------------------------------------------------


def training(tensors: dict, **arguments: object) -> dict:
    """Return the content of a file that LlamaGen's training script saves."""
    moments = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-4}]}
    namespace = argparse.Namespace(gpt_model="GPT-XL", image_size=256, ema=False, data_path=None, **arguments)
    return {"model": tensors, "optimizer": moments, "steps": 50_000, "args": namespace}


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_a_training_checkpoint_is_read(tmp_path, is_zip):
    tensors = llamagen.transformer()
    torch.save(training(tensors), tmp_path / "t2i_256.pt", _use_new_zipfile_serialization=is_zip)
    checkpoint = Checkpoint(tmp_path / "t2i_256.pt")
    assert set(checkpoint.names) == set(tensors)
    assert all(torch.equal(checkpoint[name].read(), value) for name, value in tensors.items())


class Harmful:
    """Object whose unpickling would write a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("place", ["args", "beside"])
def test_a_training_checkpoint_runs_no_code(tmp_path, place):
    harmful = Harmful(tmp_path / "ran")
    content = training({"a": torch.zeros(1)}, **({"harmful": harmful} if place == "args" else {}))
    torch.save(content if place == "args" else {**content, "harmful": harmful}, tmp_path / "a.pt")
    with raises_key("pickled.refused", file="a.pt"):
        Checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_classes_that_others_allow_in_pickles_stay_allowed(tmp_path, allowed):
    """ComfyUI and other node packs may have permanently allowed the same class."""
    torch.save(training({"a": torch.zeros(1)}), tmp_path / "a.pt")
    with torch.serialization.safe_globals([argparse.Namespace] if allowed else []):
        Checkpoint(tmp_path / "a.pt")
        assert (argparse.Namespace in torch.serialization.get_safe_globals()) is allowed


@pytest.mark.parametrize("odd", [torch.eye(2).to_sparse(), torch.zeros(2, 2, device="meta"), [1.0], None])
def test_a_pickle_with_other_values_than_dense_tensors(tmp_path, odd):
    torch.save({"a": torch.zeros(1), "b": odd}, tmp_path / "a.pt")
    with raises_key("pickled.not_flat", file="a.pt"):
        Checkpoint(tmp_path / "a.pt")


# ---- names of tensors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module.", "module.module.", "_orig_mod._orig_mod."],
)
def test_prefixes_of_training_are_stripped(target, drafter, prefix):
    reference = load_target(target)
    network = load_drafter(drafter, reference)
    for folder in (target, drafter):
        tensors = {prefix + name: value for name, value in load_file(folder / WEIGHTS).items()}
        save_file(tensors, folder / WEIGHTS)
    assert torch.equal(load_target(target).decoder.head, reference.decoder.head)
    assert torch.equal(load_drafter(drafter, reference).fc, network.fc)
    assert inspect(str(target))[0]["left_over"] == []


def test_a_compiled_part_of_a_model(target):
    """If one layer is compiled with torch.compile, the tensor names have an additional part in the middle."""
    tensors = load_file(target / WEIGHTS)
    save_file({name.replace("layers.0.", "layers.0._orig_mod."): tensors[name] for name in tensors}, target / WEIGHTS)
    assert inspect(str(target))[0]["missing"] == []


def test_other_names_keep_their_parts(tmp_path):
    names = {"model.module.a", "modules.a", "a.module"}
    save_file({name: torch.zeros(1) for name in names}, tmp_path / WEIGHTS)
    assert set(Checkpoint(tmp_path).names) == names


def test_two_tensors_with_the_same_name(tmp_path):
    save_file({"a": torch.zeros(1), "module.a": torch.ones(1)}, tmp_path / WEIGHTS)
    with raises_key("tensor.twice", tensor="a", one="a", other="module.a"):
        Checkpoint(tmp_path)


# ---- other formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.onnx", "onnx/decoder.onnx", "MODEL.ONNX"])
def test_onnx(tmp_path, name):
    folder = tmp_path / "target"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(b"\x08\x07")
    check_refused(folder, "model.onnx")
    check_refused(folder / name, "model.onnx")
    write_tiny_checkpoint(folder)
    load_target(folder)


@pytest.mark.parametrize("how", ["configuration", "tensors", "one file"])
def test_dfloat11(target, how):
    stem = "model.layers.0.self_attn.q_proj"

    def compress(tensors):
        del tensors[f"{stem}.weight"]
        for part in ("encoded_exponent", "sign_mantissa", "luts", "output_positions", "gaps"):
            tensors[f"{stem}.{part}"] = torch.zeros(8, dtype=torch.uint8)

    if how == "configuration":
        edit_config(target, lambda config: config.update(dfloat11_config={"version": "0.2.0"}))
    else:
        edit_tensors(target, compress)
    check_refused(target / WEIGHTS if how == "one file" else target, "model.compressed")


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_a_pickle_named_safetensors_is_named(target, is_zip):
    """A pickle must not be opened under this name. The error must suggest another name."""
    before = load_target(target).decoder.head
    torch.save(load_file(target / WEIGHTS), target / "other", _use_new_zipfile_serialization=is_zip)
    (target / "other").replace(target / WEIGHTS)
    check_refused(target, "pickled.wrong_name", file=WEIGHTS, name="pytorch_model.bin")
    (target / WEIGHTS).rename(target / "pytorch_model.bin")
    assert torch.equal(load_target(target).decoder.head, before)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_a_file_of_llamagen_named_safetensors_is_named(tmp_path, is_zip):
    torch.save({"a": torch.zeros(1)}, tmp_path / "t2i_256.pt", _use_new_zipfile_serialization=is_zip)
    (tmp_path / "t2i_256.pt").rename(tmp_path / "t2i_256.safetensors")
    check_refused(tmp_path / "t2i_256.safetensors", "pickled.wrong_name", name="t2i_256.pt")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.ckpt", "weights.pth"])
def test_a_safetensors_file_named_as_a_pickle_is_read(target, name):
    (target / WEIGHTS).rename(target / name)
    path = target if name == "pytorch_model.bin" else target / name
    assert "model.norm.weight" in Checkpoint(path).names


@pytest.mark.parametrize("content", [b"", b"<html>", b"\0" * 20, b"{}"])
def test_other_content_is_reported_by_the_files_name(tmp_path, content):
    for name, key in ((WEIGHTS, "safetensors.incomplete"), ("a.pt", "pickled.refused")):
        (tmp_path / name).write_bytes(content)
        with raises_key(key, file=name):
            Checkpoint(tmp_path / name)


# ---- drafters of EAGLE-3 ---------------------------------------------------------------------------


def authors(tensors: dict) -> dict:
    """Return a drafter's tensors in the layout that the authors of EAGLE-3 use."""
    layer = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items() if "layers.0." in name}
    width = len(tensors["fc.weight"])
    others = {"fc.weight": torch.zeros(width, 3 * width), "norm.weight": torch.ones(width), "d2t": torch.arange(4)}
    return {**layer, **others, "midlayer.hidden_norm.weight": torch.ones(width), "t2d": torch.ones(9, dtype=torch.bool)}


def vllms(tensors: dict) -> dict:
    """Return a drafter's tensors in vLLM's layout. The layer is the same as in EAGLE-1, with one additional norm."""
    return tensors | {"layers.0.hidden_norm.weight": torch.ones(len(tensors["fc.weight"]))}


def three_features(tensors: dict) -> dict:
    width = len(tensors["fc.weight"])
    return tensors | {"fc.weight": torch.zeros(width, 3 * width)}


@pytest.mark.parametrize("layout", [authors, vllms, three_features])
def test_a_drafter_of_eagle_3(target, drafter, layout):
    model = load_target(target)
    save_file(layout(load_file(drafter / WEIGHTS)), drafter / WEIGHTS)
    with raises_key("drafter.eagle3", called="drafter '"):
        load_drafter(drafter, model)
    check_refused(drafter, "drafter.eagle3", called=drafter)


# ---- links -----------------------------------------------------------------------------------------


def break_link(file: Path) -> dict[str, Path]:
    """Replace a file or folder by a link without a target. Return the values of the expected error."""
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    target = file.parent / "blobs" / "0123"
    file.symlink_to(target)
    return {"path": file, "target": target}


@needs_links
@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", ""])
def test_a_dangling_link(target, name):
    with raises_key("file.dead_link", **break_link(target / name)):
        load_target(target)


@needs_links
def test_a_file_below_a_dangling_link(target):
    values = break_link(target)
    check_refused(target / WEIGHTS, "file.dead_link", **values)


@needs_links
def test_a_drafter_with_a_dangling_link(target, drafter):
    model = load_target(target)
    with raises_key("file.dead_link", **break_link(drafter / WEIGHTS)):
        load_drafter(drafter, model)


@needs_links
def test_a_shard_with_a_dangling_link(tmp_path):
    folder = write_emu3(tmp_path / "target")
    check_refused(folder, "file.dead_link", **break_link(folder / "model-00002-of-00002.safetensors"))


@needs_links
@pytest.mark.parametrize(
    "layout, name", [("lumina", "vqgan.ckpt"), ("lumina-mgpt-2", "movqgan_270M.ckpt"), ("liquid", "vqgan.ckpt")]
)
def test_an_image_decoder_with_a_dangling_link(copied, layout, name):
    folder = copied(layout)
    check_refused(folder, "file.dead_link", **break_link(folder.parent / name))


@needs_links
def test_a_stage_of_glm_image_with_a_dangling_link(copied):
    folder = copied("glm-image")
    break_link(folder / "vision_language_encoder" / "config.json")
    check_refused(folder, "model.incomplete", error="file.dead_link")


@needs_links
def test_a_cache_with_a_dangling_snapshot(tmp_path):
    cache = tmp_path / "models--somebody--tiny"
    write_tiny_checkpoint(cache / "snapshots" / "one")
    (cache / "snapshots" / "two").symlink_to(tmp_path / "gone")
    load_target(cache)


@needs_links
def test_links_to_existing_files(target, tmp_path):
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        (target / name).rename(tmp_path / name)
        (target / name).symlink_to(tmp_path / name)
    load_target(target)
    assert json.loads((target / "config.json").read_text(encoding="utf-8"))
