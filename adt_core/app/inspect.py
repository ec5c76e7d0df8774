"""The command ``inspect``: describes a checkpoint by its configuration and the headers of its weights files."""

from __future__ import annotations

import math
from copy import copy, deepcopy
from dataclasses import replace

import torch
from torch import nn

from ..drafters.eagle_files import describe
from ..drafters.jacobi import JacobiDrafter
from ..engine.decoding import Decoding
from ..engine.request import Request
from ..errors import AdtError
from ..models.config import DecoderConfig
from ..models.load import family_of, open_checkpoint
from ..models.quantised import quantise
from ..models.reading.checkpoint import CONFIG, TOKENIZER, Checkpoint
from ..models.reading.entries import Entry, missing_tensors
from ..models.reading.paths import resolve
from ..models.target import EncodedPrompt, Target
from ..models.unsupported import refuse_eagle3, refuse_kind
from ..policies import Drafting
from ..recipe import Recipe
from ..settings import BUNDLED, Sampling

_STORED = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.bfloat16, "int8"),
    "int4": (torch.bfloat16, "int4"),
}
"""Ways to store the weights for which the memory is estimated: name -> dtype and quantisation.

There are no entries for float16, which needs as much memory as bfloat16, and fp8, which needs as much as int8."""
_PROMPT_TOKENS = 64
"""Length in tokens of the prompt for which the memory is estimated."""


def inspect(path: str) -> list[dict]:
    """Describe the checkpoints at a path, with values that JSON supports. "bundled" has both a target and a drafter.

    Raises:
        AdtError: If there is no checkpoint at the path.
    """
    drafters = [Checkpoint(resolve(BUNDLED, "drafter"))] if path == BUNDLED else []
    return [_describe(checkpoint) for checkpoint in (open_checkpoint(path), *drafters)]


def is_complete(path: str) -> bool:
    """Return whether a checkpoint is complete according to the headers of its files."""
    try:
        found = inspect(path)[0]
    except AdtError:
        return False
    return not found["missing"] and not found["to_do"]


def _describe(checkpoint: Checkpoint) -> dict:
    describe_role = _drafter if "fc.weight" in checkpoint.names else _target
    figures, entries, unneeded = describe_role(checkpoint)
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
    """Return the description of a target, an `Entry` per parameter, and name prefixes of tensors that loading ignores.

    An `Entry` names the tensors of the checkpoint from which a parameter is loaded.
    """
    refuse_kind(checkpoint)
    family = family_of(checkpoint)
    with torch.device("meta"):
        target = family.skeleton(checkpoint)
    entries = family.entries(target, checkpoint)
    side = target.downsample
    missing = missing_tensors(entries, checkpoint)
    advice = [
        remedy
        for prefix, remedy in family.missing_remedies(checkpoint).items()
        if any(name.startswith(prefix) for name in missing)
    ]
    try:
        family.prompter(target, checkpoint)
    except AdtError as error:
        if not any(remedy in error.message for remedy in advice):
            advice.append(error.message.removesuffix("."))
    figures = {
        "role": "target",
        "family": family.name,
        **_decoder_figures(target.decoder.config),
        "grid": list(target.grid),
        "pixels": [cells * side for cells in target.grid],
        "codebook": list(target.codec.codebook.shape),
        "memory": {name: _memory(target, *stored) for name, stored in _STORED.items()},
        "to_do": advice,
    }
    return figures, entries, family.unneeded


def _memory(target: Target, dtype: torch.dtype, weights: str | None) -> int:
    """Return the estimated GPU memory in bytes for the weights and for decoding one image.

    The estimate assumes guidance and the method `auto` without a drafter network.
    """
    variant = copy(target)
    variant.decoder = deepcopy(target.decoder)
    context = max(variant.decoder.config.max_positions, variant.length + _PROMPT_TOKENS)
    variant.decoder.config = replace(variant.decoder.config, max_positions=context)
    variant.decoder.set_dtype(dtype)
    if weights is not None:
        quantise(variant.decoder, weights)
    rows = [EncodedPrompt([0] * _PROMPT_TOKENS)]
    recipe = Recipe(Sampling(guidance_scale=2.0), Drafting("auto"))
    decoding = Decoding(Request.of(variant, recipe, rows, JacobiDrafter(), negatives=rows))
    stored = sum(part.numel() * part.element_size() for part in variant.decoder.state_dict().values())
    return stored + 4 * _size(target.codec) + dtype.itemsize * _size(target.text_encoder) + decoding.memory_required()


def _drafter(checkpoint: Checkpoint) -> tuple[dict, list[Entry], tuple[str, ...]]:
    """Return the three values of `_target` for an EAGLE drafter."""
    refuse_eagle3(checkpoint, str(checkpoint.path))
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
    """Format a description from `inspect` as aligned lines for a terminal."""
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
