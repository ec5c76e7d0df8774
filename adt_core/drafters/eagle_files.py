"""Loading of EAGLE drafters from checkpoints in the layout that EAGLE's authors publish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..errors import AdtError, Check
from ..models.config import DecoderConfig
from ..models.load import open_checkpoint
from ..models.reading.checkpoint import Checkpoint
from ..models.reading.entries import Entry, check_entries, copy_entry, fill
from ..models.reading.fields import read_json
from ..models.reading.layout import decoder_config, layer_entries
from ..models.reading.paths import resolve
from ..models.target import Target
from ..models.unsupported import refuse_eagle3
from .eagle import EagleDrafter, Pairing

PAIRING_FILE = "pairing.json"
"""File in a drafter's folder. The command `check-drafter` saves the drafter's :class:`Pairing` in this file."""
LLAMAGEN_GRIDS = {"t2i": (119, 16), "t2i2": (119, 32)}
"""`DecoderConfig.grid_rope` for each `input_type` in the config files of LANTERN's drafters for LlamaGen. The two
numbers are defined in :func:`grid_of_pairs`."""


@torch.inference_mode(False)
def load_eagle(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> EagleDrafter:
    """Load a drafter in the dtype of its target.

    The weights are loaded outside of inference mode, because ComfyUI later moves the weights outside of that mode.

    Args:
        path: "bundled" or the folder of the drafter.
        check: Called often; may raise an exception to cancel.
        device: Device of the weights (default: the target's).

    Raises:
        AdtError: If files are missing or damaged, or the drafter was made for another target.
    """
    checkpoint = open_checkpoint(path, "drafter")
    drafter = _empty(checkpoint, str(path), target)
    device = device or target.decoder.embedding.device
    drafter.to(target.decoder.dtype).to_empty(device=device).requires_grad_(False).eval()
    fill(_entries(drafter, checkpoint), checkpoint, check)
    recorded = checkpoint.folder / PAIRING_FILE
    if recorded.is_file():
        pairing = read_json(recorded)
        drafter.pairing = Pairing(*(bool(pairing.get(name)) for name in Pairing._fields))
    return drafter


def fits_target(path: str | Path, target: Target) -> bool:
    """Return whether the drafter at `path` was made for a target. The weights of the drafter are not read."""
    try:
        _empty(Checkpoint(resolve(path, "drafter")), str(path), target)
    except AdtError:
        return False
    return True


def _empty(checkpoint: Checkpoint, path: str, target: Target) -> EagleDrafter:
    """Return the drafter on the device "meta", without its weights.

    Raises:
        AdtError: If the files are damaged, or the drafter was made for another target.
    """
    refuse_eagle3(checkpoint, f"drafter {path!r}")
    ours = target.decoder.config
    if "fc.weight" not in checkpoint.names or "layers.0.self_attn.q_proj.weight" not in checkpoint.names:
        raise AdtError("drafter.not_eagle", path=path)
    width, tokens = (checkpoint.sizes(name)[0] for name in ("fc.weight", "embed_tokens.weight"))
    if width != ours.hidden_size or tokens != ours.vocab_size:
        raise AdtError(
            "drafter.other_sizes",
            path=path,
            width=width,
            tokens=tokens,
            model=target.name,
            own_width=ours.hidden_size,
            own_tokens=ours.vocab_size,
        )
    drafter, entries = describe(checkpoint, ours)
    if drafter.config.qk_norm != ours.qk_norm or drafter.config.grid_rope != grid_of_pairs(ours):
        raise AdtError("drafter.other_family", path=path, model=target.name)
    check_entries(entries, checkpoint)
    return drafter


def describe(checkpoint: Checkpoint, target: DecoderConfig | None = None) -> tuple[EagleDrafter, list[Entry]]:
    """Return a drafter without its weights, on the device "meta", and the checkpoint entries to load.

    Args:
        target: Configuration of the target, for values that the drafter's `config.json` lacks.
    """
    fields = checkpoint.config
    grid = LLAMAGEN_GRIDS.get(str(fields.get("input_type")))
    if target is not None:
        grid = grid or grid_of_pairs(target)
        fields = {**config_fields(target), **fields, "max_position_embeddings": target.max_positions}
    qk_norm = "layers.0.self_attn.q_norm.weight" in checkpoint.names
    config = decoder_config(fields, checkpoint.path, qk_norm=qk_norm, grid_rope=grid)
    with torch.device("meta"):
        drafter = EagleDrafter(config, input_norm="layers.0.input_layernorm.weight" in checkpoint.names)
    return drafter, _entries(drafter, checkpoint)


def config_fields(config: DecoderConfig) -> dict:
    """Return the `config.json` of a drafter with the given configuration."""
    stage = next((name for name, grid in LLAMAGEN_GRIDS.items() if grid == config.grid_rope), None)
    return {
        **({"input_type": stage} if stage else {}),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_positions,
        "hidden_act": config.activation,
        **({"head_dim": config.explicit_head_dim} if config.explicit_head_dim else {}),
    }


def new_config(target: DecoderConfig) -> DecoderConfig:
    """Return the configuration of a new drafter for a target: one plain layer with the widths of the target."""
    plain = replace(target, mrope_section=None, qkv_bias=False, post_norms=False)
    return replace(plain, num_layers=1, head_hidden_size=0, grid_rope=grid_of_pairs(target))


def grid_of_pairs(target: DecoderConfig) -> tuple[int, int] | None:
    """Return the `grid_rope` of a target's drafter: the first position of the grid, and the cells per row.

    The drafter reads pairs (feature of token i, token i + 1). A pair has position i, but its rotary embedding must be
    the position of the cell of token i + 1. Therefore the drafter's grid starts one position earlier than the target's.
    """
    return target.grid_rope and (target.grid_rope[0] - 1, target.grid_rope[1])


def _entries(drafter: EagleDrafter, checkpoint: Checkpoint) -> list[Entry]:
    return [
        copy_entry(drafter.embedding, "embed_tokens.weight"),
        copy_entry(drafter.fc, "fc.weight", transpose=True),
        copy_entry(drafter.fc_bias, "fc.bias"),
        *layer_entries(drafter.layer, checkpoint, "layers.0"),
    ]
