"""What a checkpoint holds, read from its configuration and the headers of its files alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..drafters.eagle_files import describe
from ..errors import AdtError
from ..models.cache import KVCache
from ..models.checkpoint import BUNDLED, CONFIG, TOKENIZER, Checkpoint, Entry, missing_tensors, resolve
from ..models.config import DecoderConfig
from ..models.layers import MATRICES, WIDE
from ..models.load import family_of
from ..models.target import Target
from . import mistaken
from .checkpoints import open_checkpoint

_ITEMSIZES = {"float32": 4, "bfloat16": 2, "int8": 1}
"""Bytes of a number; float16 is as bfloat16, fp8 as int8."""


def inspect(path: str) -> list[dict]:
    """What the checkpoints at ``path`` hold ("bundled" is two), in JSON's types. AdtError for what is no checkpoint."""
    drafters = [Checkpoint(resolve(BUNDLED, "drafter"))] if path == BUNDLED else []
    return [_describe(checkpoint) for checkpoint in (open_checkpoint(path), *drafters)]


def _describe(checkpoint: Checkpoint) -> dict:
    role = _drafter if "fc.weight" in checkpoint.names else _target
    figures, entries, unneeded = role(checkpoint)
    expected = {name: shape for entry in entries for name, shape in zip(entry.names, entry.shapes)}
    stored = {name: checkpoint[name] for name in sorted(checkpoint.names)}
    return {
        "path": str(checkpoint.path),
        **figures,
        "parameters": sum(math.prod(tensor.shape) for tensor in stored.values()),
        "dtype": ", ".join(sorted({tensor.dtype for tensor in stored.values()})),
        "bytes": sum(file.stat().st_size for file in checkpoint.files),
        "files": [file.name for file in checkpoint.files],
        "missing": sorted(missing_tensors(entries, checkpoint)),
        "wrong_shape": [
            f"{name} {stored[name].shape}, expected {shape}"
            for name, shape in expected.items()
            if name in stored and stored[name].shape != shape
        ],
        "left_over": [
            name for name in stored if name not in expected and not name.startswith((*unneeded, CONFIG, TOKENIZER))
        ],
    }


def _target(checkpoint: Checkpoint) -> tuple[dict, list[Entry], tuple[str, ...]]:
    """Figures of a target, where its parameters come from, and how the names of tensors begin that it does not need."""
    mistaken.refuse_kind(checkpoint)
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    entries, side = family.entries(target, checkpoint), target.downsample
    missing = missing_tensors(entries, checkpoint)
    advice = [
        remedy
        for prefix, remedy in family.orders(checkpoint).items()
        if any(name.startswith(prefix) for name in missing)
    ]
    try:
        family.prompter(target, checkpoint)
    except AdtError as error:
        if not any(remedy in error.marked for remedy in advice):
            advice.append(error.marked.removesuffix("."))
    figures = {
        "role": "target",
        "family": family.name,
        **_decoder_figures(target.decoder.config),
        "grid": list(target.grid),
        "pixels": [cells * side for cells in target.grid],
        "codebook": list(target.codec.codebook.shape),
        "memory": {name: _memory(target, size) for name, size in _ITEMSIZES.items()},
        "to_do": advice,
    }
    return figures, entries, family.unneeded


def _memory(target: Target, size: int) -> int:
    """Bytes for an image with guidance: matrices in ``size`` bytes a number, head in four, all else in two or more."""
    matrices = sum(getattr(layer, name).numel() for layer in target.decoder.layers for name in MATRICES)
    wide = sum(value.numel() for name, value in target.decoder.named_parameters(recurse=False) if name in WIDE)
    others = _size(target.decoder) - matrices - wide + _size(target.text_encoder)
    cache = KVCache.num_bytes(target.decoder.config, 2, target.length + 128, max(size, 2))
    return matrices * size + others * max(size, 2) + cache + (wide + _size(target.codec)) * 4


def _drafter(checkpoint: Checkpoint) -> tuple[dict, list[Entry], tuple[str, ...]]:
    """The same of an EAGLE drafter."""
    drafter, entries = describe(checkpoint)
    return {"role": "drafter", "family": "eagle", **_decoder_figures(drafter.config)}, entries, ()


def _size(module: nn.Module | None) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) if module is not None else 0


def _decoder_figures(config: DecoderConfig) -> dict:
    return {
        "layers": config.num_layers,
        "width": config.hidden_size,
        "heads": config.num_heads,
        "vocabulary": config.vocab_size,
        "context": config.max_positions,
    }


def as_text(figures: dict) -> str:
    """A description as aligned lines for a terminal."""
    shown = dict(figures)
    for name in {"grid", "pixels", "codebook"} & shown.keys():
        shown[name] = " x ".join(map(str, shown[name]))
    if "memory" in shown:
        sizes = ", ".join(f"{size / 2**30:.2f} GiB in {name}" for name, size in shown["memory"].items())
        shown["memory"] = f"{sizes} for one image with guidance"
    shown["parameters"] = f"{shown['parameters']:,}"
    shown["size on disk"] = f"{shown.pop('bytes') / 2**20:.1f} MiB in {', '.join(shown.pop('files'))}"
    shown["to do"] = "; ".join(shown.pop("to_do", [])) or "nothing"
    for name in ("missing", "wrong_shape", "left_over"):
        tensors = shown.pop(name)
        first = f"{len(tensors)}: {', '.join(tensors[:4])}{' ...' if len(tensors) > 4 else ''}"
        shown[name.replace("_", " ")] = first if tensors else "nothing"
    return "\n".join(f"{name:13} {value}" for name, value in shown.items())
