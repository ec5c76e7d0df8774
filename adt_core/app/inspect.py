"""What a checkpoint holds, read from its configuration and the headers of its files alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..drafters.eagle import describe
from ..errors import AdtError
from ..models.cache import KVCache
from ..models.checkpoint import BUNDLED, Checkpoint, Entry, missing_tensors, resolve
from ..models.config import DecoderConfig
from ..models.layers import MATRICES
from ..models.load import family_of

_ITEMSIZES = {"float32": 4, "bfloat16": 2, "int8": 1}  # float16 is as bfloat16, fp8 as int8


def inspect(path: str) -> list[dict]:
    """One description per checkpoint at ``path`` ("bundled" is two); an AdtError if it is no checkpoint that can be read."""
    roles = ("target", "drafter") if path == BUNDLED else ("target",)
    return [_describe(Checkpoint(resolve(path, role))) for role in roles]


def _describe(checkpoint: Checkpoint) -> dict:
    """Figures of one checkpoint, of plain JSON types."""
    names = set(checkpoint.names)
    figures, entries, unneeded = _drafter(checkpoint) if "fc.weight" in names else _target(checkpoint)
    wanted = {name for entry in entries for name in entry.names}
    shapes = dict(pair for entry in entries for pair in zip(entry.names, entry.shapes) if pair[0] in names)
    return {
        "path": str(checkpoint.path),
        **figures,
        "parameters": sum(math.prod(checkpoint.shape(name)) for name in names),
        "dtype": ", ".join(sorted({checkpoint.dtype(name) for name in names})),
        "bytes": sum(file.stat().st_size for file in checkpoint.files),
        "files": [file.name for file in checkpoint.files],
        "missing": sorted(missing_tensors(entries, checkpoint)),
        "wrong_shape": [
            f"{name} {checkpoint.shape(name)}, expected {shape}"
            for name, shape in shapes.items()
            if checkpoint.shape(name) != shape
        ],
        "left_over": sorted(name for name in names - wanted if not name.startswith(unneeded or ("\0",))),
    }


def _target(checkpoint: Checkpoint) -> tuple[dict, list[Entry], tuple[str, ...]]:
    """Figures of a target, where its parameters come from, and what it doesn't need."""
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    entries = family.entries(target, checkpoint)
    config, side = target.decoder.config, target.downsample
    missing = missing_tensors(entries, checkpoint)
    advice = [remedy for prefix, remedy in family.remedies.items() if any(name.startswith(prefix) for name in missing)]
    try:
        family.prompter(target, checkpoint)
    except AdtError as error:
        advice += [] if any(remedy in str(error) for remedy in advice) else [str(error).removesuffix(".")]
    matrices = sum(getattr(layer, name).numel() for layer in target.decoder.layers for name in MATRICES)
    others = _size(target.decoder) - matrices + (_size(target.text_encoder) if target.text_encoder is not None else 0)
    stored = {name: (size, matrices * size + others * max(size, 2)) for name, size in _ITEMSIZES.items()}
    codec = _size(target.codec) * 4
    return (
        {
            "role": "target",
            "family": family.name,
            **_decoder_figures(config),
            "grid": list(target.grid),
            "pixels": [target.grid[0] * side, target.grid[1] * side],
            "codebook": list(target.codec.codebook.shape),
            "memory": {
                name: weights + KVCache.num_bytes(config, 2, target.length + 128, max(size, 2)) + codec
                for name, (size, weights) in stored.items()
            },
            "to_do": advice,
        },
        entries,
        family.unneeded,
    )


def _drafter(checkpoint: Checkpoint) -> tuple[dict, list[Entry], tuple[str, ...]]:
    """The same of an EAGLE drafter."""
    drafter, entries = describe(checkpoint)
    return {"role": "drafter", "family": "eagle", **_decoder_figures(drafter.config)}, entries, ()


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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
    for name in ("grid", "pixels", "codebook"):
        if name in shown:
            shown[name] = " x ".join(map(str, shown[name]))
    if "memory" in shown:
        shown["memory"] = (
            ", ".join(f"{size / 2**30:.2f} GiB in {name}" for name, size in shown["memory"].items())
            + " for one image with guidance"
        )
    shown["parameters"] = f"{shown['parameters']:,}"
    shown["size on disk"] = f"{shown.pop('bytes') / 2**20:.1f} MiB in {', '.join(shown.pop('files'))}"
    shown["to do"] = "; ".join(shown.pop("to_do", [])) or "nothing"
    for name in ("missing", "wrong_shape", "left_over"):
        found = shown.pop(name)
        shown[name.replace("_", " ")] = (
            f"{len(found)}: {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}" if found else "nothing"
        )
    return "\n".join(f"{name:13} {value}" for name, value in shown.items())
