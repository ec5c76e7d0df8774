"""Fuzzers for checkpoints of all families: configurations, weights and pickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adt_core import load_drafter, load_target
from adt_core.app.inspect import inspect
from tests.layouts.families import WRITERS
from tests.tiny import write_tiny_drafter

from .strategies import ODD, TEXTS, as_json, changed, damaged

DTYPES = [torch.float16, torch.float64, torch.int8, torch.bool, torch.int64, torch.float8_e4m3fn, torch.bfloat16]
SHAPES = [(), (1,), (0,), (1, 1), (2, 3), (1, 2, 3, 4), (3, 1, 2), (0, 5), (10**4,)]


def write_all(folder: Path) -> dict[str, Path]:
    """Write a checkpoint of each family, and a drafter. Return a dict: kind -> folder."""
    folders = {name: write(folder / name) for name, write in WRITERS.items()}
    return folders | {"drafter": write_tiny_drafter(folder / "drafter" / "drafter", folders["chameleon"])}


def opener(folders: dict[str, Path]) -> Callable[[str, Path], None]:
    """Return a function (kind, path) that inspects and loads a checkpoint."""
    target = load_target(folders["chameleon"])

    def open_checkpoint(kind: str, folder: Path) -> None:
        inspect(str(folder))
        if kind == "drafter":
            load_drafter(folder, target)
        else:
            opened = load_target(folder)
            opened.prompter.check("a cat", opened.grid)

    return open_checkpoint


def damaging(folder: Path, pattern: str, write: Callable[[Callable, Path, bytes], object]) -> Callable:
    """Return a function that opens a checkpoint after a change of one of its files, and restores the file.

    Args:
        write: Function (draw, path, content) that writes the changed file.
    """
    folders = write_all(folder)
    files = [(kind, file) for kind, one in sorted(folders.items()) for file in sorted(one.parent.rglob(pattern))]
    open_checkpoint = opener(folders)

    def try_input(data) -> None:
        kind = data.draw(st.sampled_from(sorted({kind for kind, _ in files})))
        file = data.draw(st.sampled_from([file for of, file in files if of == kind]))
        before = file.read_bytes()
        write(data.draw, file, before)
        try:
            open_checkpoint(kind, folders[kind])
        finally:
            file.write_bytes(before)

    return try_input


def configurations(folder: Path) -> Callable:
    """Replace any field of any JSON file by any JSON value."""

    def write(draw: Callable, file: Path, before: bytes) -> None:
        is_json = draw(st.integers(0, 9))
        file.write_bytes(as_json(changed(draw, json.loads(before))).encode() if is_json else damaged(draw, before))

    return damaging(folder, "*.json", write)


def weights(folder: Path) -> Callable:
    """Remove or replace tensors, or damage the bytes of weight files."""

    def write(draw: Callable, file: Path, before: bytes) -> None:
        if draw(st.booleans()):
            file.write_bytes(damaged(draw, before))
        else:
            save_file(replace_tensor(draw, load_file(file)), file)

    return damaging(folder, "*.safetensors", write)


def replace_tensor(draw: Callable, tensors: dict) -> dict:
    """Remove, rename or replace one tensor."""
    name = draw(st.sampled_from(sorted(tensors)))
    value = tensors.pop(name)
    change = draw(st.sampled_from(["drop", "shape", "dtype", "name", "nan", "transposed"]))
    if change == "shape":
        tensors[name] = torch.zeros(draw(st.sampled_from(SHAPES)), dtype=value.dtype)
    elif change == "dtype":
        tensors[name] = value.to(draw(st.sampled_from(DTYPES)))
    elif change == "name":
        tensors[draw(st.text(st.characters(codec="utf-8"), max_size=8)) + name[: draw(st.integers(0, 9))]] = value
    elif change == "nan":
        tensors[name] = torch.full_like(value, float("nan")) if value.is_floating_point() else value
    elif change == "transposed":
        tensors[name] = value.movedim(0, -1).contiguous() if value.ndim else value
    return tensors


class Hostile:
    """Object whose unpickling would create a file."""

    def __reduce__(self):
        return Path.touch, (Path("../outside"),)


def pickles(folder: Path) -> Callable:
    """Load pickles that contain replaced tensors, objects that aren't weights, or damaged bytes."""
    folders = {kind: one for kind, one in write_all(folder).items() if kind in ("chameleon", "drafter")}
    open_checkpoint = opener(folders)
    tensors = {kind: load_file(one / "model.safetensors") for kind, one in folders.items()}
    for one in folders.values():
        (one / "model.safetensors").unlink()
    values = ODD | st.builds(Hostile) | st.sampled_from(DTYPES) | st.sampled_from(SHAPES).map(torch.zeros)

    def content(draw: Callable, kind: str) -> object:
        variant = draw(st.sampled_from(["tensor", "wrapped", "key", "value", "other", "keys"]))
        weights = dict(tensors[kind])
        if variant == "tensor":
            return replace_tensor(draw, weights)
        if variant == "wrapped":
            return {draw(st.sampled_from(["model", "module", "state_dict"])): draw(st.just(weights) | values)}
        if variant == "keys":
            return {draw(st.integers() | st.none() | TEXTS | st.tuples(st.integers())): torch.zeros(1), **weights}
        if variant == "other":
            return draw(values)
        name = draw(st.sampled_from(sorted(weights)))
        return weights | {name if variant == "value" else draw(TEXTS): draw(values)}

    def try_input(data) -> None:
        kind = data.draw(st.sampled_from(sorted(folders)))
        file = folders[kind] / "pytorch_model.bin"
        value = content(data.draw, kind)
        if data.draw(st.integers(0, 5)):
            torch.save(value, file, _use_new_zipfile_serialization=data.draw(st.booleans()))
        else:
            file.write_bytes(pickle.dumps(value))
        if not data.draw(st.integers(0, 3)):
            file.write_bytes(damaged(data.draw, file.read_bytes()))
        open_checkpoint(kind, folders[kind])

    return try_input
