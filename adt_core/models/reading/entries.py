"""Loading of parameters. An entry states which tensors of a checkpoint a parameter is made of, and how."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ...errors import AdtError, Check
from ...messages import message
from .checkpoint import Checkpoint, StoredTensor, is_finite, widened

_UNQUANTISED = re.compile(r"b?f(loat)?(16|32|64)|f(loat)?8_e[45]m\w+", re.IGNORECASE)
"""Dtypes whose numbers are the weights themselves, in the notations of safetensors ("F16") and torch ("float16"). Other
dtypes need scales."""
_WIDER = {torch.bfloat16: "float32", torch.float32: "float64"}
"""Dtype of a parameter -> wider dtype that the error message recommends if a value exceeds the parameter's range. For
parameters of other dtypes, the message recommends "bfloat16 or float32"."""


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)  # avoids the copy of a single large tensor


@dataclass(frozen=True)
class Entry:
    """Source of a parameter: the tensors of a checkpoint that it is made of.

    Attributes:
        parameter: The parameter to fill.
        names: Names of the tensors in the checkpoint.
        shapes: Shapes that the tensors must have.
        make: Function that computes the value of the parameter from the tensors. The default concatenates them along
            dimension 0.
        put: Function that stores the value. None to copy the value to the parameter.
    """

    parameter: Tensor
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    make: Callable[[list[Tensor]], Tensor] = _joined
    put: Callable[[Tensor], object] | None = None

    def renamed(self, changes: Mapping[str, str]) -> Entry:
        """Return the same entry with other names of the tensors: each key is replaced with its value, in this order."""
        names = self.names
        for old, new in changes.items():
            names = tuple(name.replace(old, new) for name in names)
        return replace(self, names=names)


def transposed(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors along dimension 0 and transpose the result. Used as ``Entry.make``."""
    return _joined(tensors).T


def copy_entry(
    parameter: Tensor, name: str, transpose: bool = False, put: Callable[[Tensor], object] | None = None
) -> Entry:
    """Return the entry of a parameter that is a copy of one tensor, or its transpose."""
    shape = parameter.T.shape if transpose else parameter.shape
    return Entry(parameter, (name,), (tuple(shape),), transposed if transpose else _joined, put)


def module_entries(module: nn.Module, prefix: str, renamed: Callable[[str], str] = str) -> list[Entry]:
    """Return the entries of all parameters of a module, each a copy of one tensor.

    ``renamed`` converts the name of a parameter to the name of its tensor, both without prefix.
    """
    return [copy_entry(parameter, prefix + renamed(name)) for name, parameter in module.named_parameters()]


def missing_tensors(entries: list[Entry], checkpoint: Checkpoint) -> list[str]:
    """Return the names of those tensors of the entries that are missing in the checkpoint."""
    return [name for entry in entries for name in entry.names if name not in checkpoint.names]


def check_entries(
    entries: list[Entry], checkpoint: Checkpoint, remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check that the checkpoint has all tensors, with the expected shapes and dtypes. The tensors are not read.

    Args:
        remedies: What to do if a tensor is missing, for the error message. Keys are prefixes of the tensors' names.

    Raises:
        AdtError: If a tensor is missing, has an unexpected shape, or is quantised.
    """
    missing = missing_tensors(entries, checkpoint)
    if missing:
        more = message("remark.more", count=len(missing) - 1) if len(missing) > 1 else ""
        fitting = (remedy for prefix, remedy in remedies.items() if missing[0].startswith(prefix))
        remedy = next(fitting, message("remedy.incomplete"))
        raise AdtError("tensors.missing", path=checkpoint.path, name=missing[0], more=more, remedy=remedy)
    for name, shape in (pair for entry in entries for pair in zip(entry.names, entry.shapes)):
        stored = checkpoint[name].shape
        if stored != shape:
            raise AdtError("tensor.wrong_shape", path=checkpoint.path, name=name, stored=stored, shape=shape)
    floating = [entry for entry in entries if entry.parameter.is_floating_point()]
    _check_dtypes([name for entry in floating for name in entry.names], checkpoint)


def _check_dtypes(names: list[str], checkpoint: Checkpoint) -> None:
    """Raise an AdtError if one of the named tensors is quantised."""
    scaled = {name.rpartition(".")[0] for name in checkpoint.names if "scale" in name.rpartition(".")[2].lower()}
    for name in names:
        dtype = checkpoint[name].dtype
        if not _UNQUANTISED.fullmatch(dtype):
            raise AdtError("tensor.quantised", path=checkpoint.path, name=name, dtype=dtype)
        if "8_" in dtype and not scaled.isdisjoint((name, name.rpartition(".")[0])):
            raise AdtError("tensor.scaled", path=checkpoint.path, name=name, dtype=dtype)


@torch.no_grad()
def fill(
    entries: list[Entry],
    checkpoint: Checkpoint,
    check: Check | None = None,
    filled: Callable[[Entry], object] | None = None,
    checked: bool = True,
) -> None:
    """Fill the parameters of all entries one by one.

    Args:
        check: Called before each parameter. It may raise an exception to cancel.
        checked: Whether to check the numbers. False for tensors that were checked when they were read before.

    Raises:
        AdtError: If a number in a file is not finite, or too large for the dtype of its parameter.
    """
    opened: dict[Path, StoredTensor] = {}
    for entry in entries:
        if check is not None:
            check()
        sources = [checkpoint[name] for name in entry.names]
        files = {stored.file: stored for stored in sources}
        for file in opened.keys() - files.keys():
            opened[file].close()  # an open file takes address space
        opened = files
        value = entry.make([stored.read_finite() if checked else widened(stored.read()) for stored in sources])
        (entry.put or entry.parameter.copy_)(value)
        is_clamped = entry.put is not None and entry.parameter.element_size() == 1
        if checked and not is_clamped and _may_overflow(entry.parameter.dtype, value.dtype):
            _refuse_overflow(entry.parameter, sources)
        if filled is not None:
            filled(entry)


def _may_overflow(dtype: torch.dtype, source: torch.dtype) -> bool:
    """Return whether finite numbers of the dtype ``source`` may become infinite in a parameter of ``dtype``.

    For float16 parameters the answer is always True, because some ``put`` functions multiply the value.
    """
    if not (dtype.is_floating_point and source.is_floating_point):
        return False
    return dtype == torch.float16 or torch.finfo(dtype).max < torch.finfo(source).max


def _refuse_overflow(parameter: Tensor, sources: list[StoredTensor]) -> None:
    """Raise an AdtError if a parameter is not finite, although the tensors of ``sources`` are finite."""
    if is_finite(widened(parameter)):
        return
    largest = [widened(stored.read()).abs().max().item() for stored in sources]
    stored = sources[largest.index(max(largest))]
    name = str(parameter.dtype).removeprefix("torch.")
    most = torch.finfo(parameter.dtype).max
    raise AdtError(
        "tensor.too_large",
        file=stored.file,
        wider=_WIDER.get(parameter.dtype, "bfloat16 or float32"),
        name=stored.name,
        dtype=name,
        most=f"{most:.6g}",
    )
