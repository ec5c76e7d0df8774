"""Fields of a checkpoint's ``config.json``: each is of the expected kind and size, or a sentence says what is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NoReturn

from ..errors import AdtError, shown

Source = Path | str
"""What a sentence names: the checkpoint."""
MOST = dict.fromkeys(
    ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_layers", "num_heads"), 999
)
MOST |= {"num_res_blocks": 99, "resolution": 2**14, "image_size": 2**14}
"""Bounds of sizes that have a lower one than 2**21."""
MOST_LEVELS = 12
"""Entries of a list of sizes."""


def section(config: dict, name: str, source: Source) -> dict:
    """The part ``name`` of a ``config.json``. AdtError if it has none."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise AdtError(f"{source}: config.json has no {name}; use the checkpoint's own config.json.")
    return value


def whole_number(config: dict, name: str, source: Source, default: object = None) -> int:
    """A size. AdtError if it is not a positive whole number, or is absurd. What is null or 0 is the default."""
    value, most = config.get(name) or default, MOST.get(name, 2**21)
    if type(value) is not int or not 1 <= value <= most:
        _refuse(source, name, value, f"a whole number from 1 to {most}")
    return value


def whole_numbers(config: dict, name: str, source: Source, default: tuple[int, ...], low: int = 1) -> tuple[int, ...]:
    """A list of a few sizes; one at least, if they must be positive. AdtError if it is none."""
    value, most = config.get(name, default), MOST.get(name, 2**14)
    listed = isinstance(value, list | tuple) and low <= len(value) <= MOST_LEVELS
    if not listed or not all(type(one) is int and low <= one <= most for one in value):
        _refuse(source, name, value, f"a list of {low} to {MOST_LEVELS} whole numbers from {low} to {most}")
    return tuple(value)


def number(config: dict, name: str, source: Source, default: float, low: float, high: float) -> float:
    """A number from low to high. AdtError if it is none. What is null is the default."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        _refuse(source, name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def switch(config: dict, name: str, source: Source, default: bool) -> bool:
    """True or false. AdtError for anything else."""
    value = config.get(name, default)
    if type(value) is not bool:
        _refuse(source, name, value, "true or false")
    return value


def word(config: dict, name: str, source: Source, choices: tuple[str, ...]) -> str:
    """One of the choices; the first if there is none. AdtError for anything else."""
    value = config.get(name, choices[0])
    if value not in choices:
        _refuse(source, name, value, " or ".join(choices))
    return value


_PLAIN: dict[str, tuple] = dict.fromkeys(
    ("attention_bias", "mlp_bias", "use_sliding_window", "swin_norm"), (None, False)
)
_PLAIN |= dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "num_experts"), (None, 0))
_PLAIN |= dict.fromkeys(("num_local_experts", "n_routed_experts", "attention_chunk_size"), (None, 0))
_PLAIN |= dict.fromkeys(("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier"), (None, 1))
_PLAIN |= {"hidden_act": (None, "silu", "swish"), "hidden_activation": (None, "silu", "swish")}
_PLAIN |= {"partial_rotary_factor": (None, 1), "attention_multiplier": (None,), "query_pre_attn_scalar": (None,)}
"""Fields that change what a decoder computes -> the values with which it computes what it does here."""
_UNSCALED = (None, "default")


def check_maths(config: dict, source: Source) -> None:
    """AdtError if a ``config.json`` asks for a decoder that computes something else than those of all families here."""
    asked = {name: config.get(name) for name, plain in _PLAIN.items() if config.get(name) not in plain}
    if config.get("use_sliding_window") is not False and config.get("sliding_window"):
        asked["sliding_window"] = config["sliding_window"]
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        kinds = [rope.get("rope_type"), rope.get("type")] if isinstance(rope, dict) else [rope]
        if any(kind not in _UNSCALED for kind in kinds) or (
            isinstance(rope, dict) and rope.get("partial_rotary_factor") not in (None, 1)
        ):
            asked[name] = rope
    hidden, heads, width = (config.get(name) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    if type(hidden) is int and type(heads) is int and heads > 0 and width not in (None, hidden // heads):
        asked["head_dim"] = width
    for name, value in asked.items():
        problem = f"config.json asks for {name} {shown(value, 60)}, which none of the models here has"
        raise AdtError(f"{source}: {problem}; use the checkpoint's own config.json, or another model.")


def _refuse(source: Source, name: str, value: object, expected: str) -> NoReturn:
    raise AdtError(
        f"{source}: config.json says {name} is {shown(value)}, but {expected} was expected; download it again."
    )
