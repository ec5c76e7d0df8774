"""Fields of a checkpoint's ``config.json``: each is of the expected kind and size, or a sentence says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import AdtError, shown
from ...untrusted import Kind, list_of, whole_number
from ..config import ACTIVATIONS

Source = Path | str
"""What a sentence names: the checkpoint."""
USUAL_MOST = 2**21
MOST = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_layers", "num_heads", "depth"), 999
    ),
    **dict.fromkeys(("resolution", "image_size", "channel_multiplier", "attn_resolutions"), 2**14),
    **dict.fromkeys(("num_res_blocks", "layers_per_block"), 99),
}
"""Bounds of sizes: the usual one, and lower ones by name."""
MOST_LEVELS = 12
"""Entries of a list of sizes."""


def section(config: dict, name: str, source: Source) -> dict:
    """The part ``name`` of a ``config.json``. AdtError if it has none."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise AdtError(f"{source}: config.json has no {name}; use the checkpoint's own config.json.")
    return value


def read(config: dict, name: str, kind: Kind, source: Source, default: Any = None) -> Any:
    """A field of this kind. AdtError for anything else. What is missing or null is the default, if there is one."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    problem = kind.problem(name, value)
    if problem:
        raise AdtError(f"{source}: config.json's {problem}; download it again.")
    return value


def size(config: dict, name: str, source: Source, default: int | None = None) -> int:
    """A positive whole number of a size that models have. AdtError for anything else. What is 0 is the default."""
    value = config.get(name) or default
    return read({name: value}, name, whole_number(1, MOST.get(name, USUAL_MOST)), source)


def sizes(config: dict, name: str, source: Source, default: tuple[int, ...] | None = None, low: int = 1) -> tuple:
    """A list of a few sizes from ``low``, and at least as many of them. AdtError for anything else."""
    kind = list_of(whole_number(low, MOST.get(name, USUAL_MOST)), low, MOST_LEVELS)
    return tuple(read(config, name, kind, source, default))


_OFF = (None, False)
_NONE = (None, 0)
_ONE = (None, 1)
_ACTIVATIONS = (None, *ACTIVATIONS)
_UNSCALED = (None, "default")
_USUAL: dict[str, tuple] = {
    "hidden_act": _ACTIVATIONS,
    "hidden_activation": _ACTIVATIONS,
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window", "swin_norm"), _OFF),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"), _NONE),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), _NONE),
    **dict.fromkeys(("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier"), _ONE),
    "partial_rotary_factor": _ONE,
}
"""Fields that change what a decoder computes -> the values with which it computes what it does here."""


def check_maths(config: dict, source: Source) -> None:
    """AdtError if a ``config.json`` asks for a decoder that computes something else than those of all families here."""
    asked = {name: config.get(name) for name, usual in _USUAL.items() if config.get(name) not in usual}
    if config.get("use_sliding_window") is not False and config.get("sliding_window"):
        asked["sliding_window"] = config["sliding_window"]
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        fields = rope if isinstance(rope, dict) else {"type": rope}
        kinds = fields.get("rope_type"), fields.get("type")
        if any(kind not in _UNSCALED for kind in kinds) or fields.get("partial_rotary_factor") not in _ONE:
            asked[name] = rope
    for name, value in asked.items():
        problem = f"config.json sets {name} to {shown(value, 60)}, which is not supported"
        raise AdtError(f"{source}: {problem}; use the checkpoint's own config.json, or choose another model.")
