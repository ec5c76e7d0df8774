"""What a checkpoint folder holds, read from its configuration and the headers of its files alone."""

from __future__ import annotations

import math

import torch

from .models.chameleon import build, decoder_config
from .models.checkpoint import BUNDLED, Checkpoint, resolve

_PROJECTIONS = [f"self_attn.{x}_proj.weight" for x in "qkvo"] + [f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")]
_QK_NORMS = [f"self_attn.{x}_norm.{kind}" for x in "qk" for kind in ("weight", "bias")]
_NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]


def inspect(path: str) -> list[dict]:
    """One description per checkpoint at ``path`` ("bundled" is two); an AdtError if it is no checkpoint that can be read."""
    roles = ("target", "drafter") if path == BUNDLED else ("target",)
    return [_describe(Checkpoint(resolve(path, role))) for role in roles]


def _describe(checkpoint: Checkpoint) -> dict:
    """Figures of one checkpoint, of plain JSON types."""
    names = set(checkpoint.names)
    figures, expected = _drafter(checkpoint, names) if "fc.weight" in names else _target(checkpoint)
    files = {file.name for file in checkpoint.folder.iterdir()}
    missing = sorted(expected - names)
    if figures["role"] == "target" and not files & {"tokenizer.json", "text_tokenizer.json"}:
        missing.append("tokenizer.json")
    return {
        "path": str(checkpoint.folder),
        **figures,
        "parameters": sum(math.prod(checkpoint.shape(name)) for name in names),
        "dtype": ", ".join(sorted({checkpoint.dtype(name) for name in names})),
        "bytes": sum(file.stat().st_size for file in checkpoint.files),
        "files": [file.name for file in checkpoint.files],
        "missing": missing,
        "left_over": sorted(names - expected),
    }


def _target(checkpoint: Checkpoint) -> tuple[dict, set[str]]:
    """Figures of a target of the Chameleon family, and the tensors that it must have."""
    with torch.device("meta"):
        decoder, codec, _ = build(checkpoint.config, checkpoint.folder)
    side = codec.config.resolution // codec.config.downsample
    expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    expected |= {f"model.vqmodel.{name}" for name, _ in codec.named_parameters()}
    for layer in range(decoder.config.num_layers):
        expected |= {f"model.layers.{layer}.{name}" for name in (*_PROJECTIONS, *_QK_NORMS, *_NORMS)}
    figures = {
        "role": "target",
        "family": "chameleon",
        **_decoder_figures(decoder.config),
        "grid": [side, side],
        "pixels": [codec.config.resolution, codec.config.resolution],
        "codebook": [codec.config.num_embeddings, codec.config.embed_dim],
    }
    return figures, expected


def _drafter(checkpoint: Checkpoint, names: set[str]) -> tuple[dict, set[str]]:
    """Figures of an EAGLE drafter, and the tensors that it must have; the norms of its layer are optional."""
    optional = {f"layers.0.{name}" for name in (*_QK_NORMS, _NORMS[0])} & names
    expected = {"embed_tokens.weight", "fc.weight", "fc.bias", *(f"layers.0.{name}" for name in (*_PROJECTIONS, _NORMS[1]))}
    return {"role": "drafter", "family": "eagle", **_decoder_figures(decoder_config(checkpoint.config, checkpoint.folder))}, expected | optional


def _decoder_figures(config) -> dict:
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
    shown["parameters"] = f"{shown['parameters']:,}"
    shown["size on disk"] = f"{shown.pop('bytes') / 2**20:.1f} MiB in {', '.join(shown.pop('files'))}"
    for name in ("missing", "left_over"):
        found = shown.pop(name)
        shown[name.replace("_", " ")] = f"{len(found)}: {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}" if found else "nothing"
    return "\n".join(f"{name:13} {value}" for name, value in shown.items())
