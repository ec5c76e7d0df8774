"""JSON files of checkpoints, and checks of the fields of a ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import AdtError, shown
from ...files import LARGEST_JSON, parse_json, read_text, reason
from ...untrusted import Kind, list_of, whole_number
from ..config import ACTIVATIONS
from .file_checks import refuse_damaged

ConfigSource = Path | str  # path or description of a checkpoint, for error messages
USUAL_MOST = 2**21  # upper bound of fields without an entry in MOST
MOST = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_layers", "num_heads", "depth"), 999
    ),
    **dict.fromkeys(("resolution", "image_size", "channel_multiplier", "attn_resolutions"), 2**14),
    **dict.fromkeys(("num_res_blocks", "layers_per_block"), 99),
}
"""Upper bounds of integer fields by name."""
MOST_LEVELS = 12  # maximum length of a field that is a list of sizes


def read_json(file: Path) -> dict:
    """Return the JSON object in a file, or raise an AdtError if there is none or the file can't be read."""
    refuse_damaged(file)
    return json_object(partial(read_text, file, LARGEST_JSON), str(file))


def json_object(read: Callable[[], str | bytes], place: str) -> dict:
    """Return the JSON object in the text that ``read`` returns.

    Raises:
        AdtError: If ``read`` raises an OSError or ValueError, or if the text is not a JSON object.
    """
    try:
        value = parse_json(read())
    except (OSError, ValueError) as error:
        raise AdtError("json.unreadable", path=place, reason=reason(error)) from error
    if not isinstance(value, dict):
        raise AdtError("json.no_object", path=place)
    return value


def section(config: dict, name: str, source: ConfigSource) -> dict:
    """Return a field of a ``config.json`` that is an object, such as ``text_config``, or raise an AdtError."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise AdtError("config_json.no_field", source=source, name=name)
    return value


def read(config: dict, name: str, kind: Kind, source: ConfigSource, default: Any = None) -> Any:
    """Return a field of a ``config.json`` after checking its value.

    Args:
        default: Value to return if the field is missing or null. If None, the field is required.

    Raises:
        AdtError: If the field is required but missing, or if its value does not fit ``kind``.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    problem = kind.problem(name, value)
    if problem:
        raise AdtError("config_json.wrong_value", source=source, problem=problem)
    return value


def size(config: dict, name: str, source: ConfigSource, default: int | None = None) -> int:
    """Return a field that is a size: an integer from 1 to a bound that no published model exceeds (:data:`MOST`).

    Args:
        default: Value to return if the field is missing, null or 0. If None, the field is required.

    Raises:
        AdtError: If the field is required but missing, or if its value is not an integer in this range.
    """
    value = config.get(name) or default
    return read({name: value}, name, whole_number(1, MOST.get(name, USUAL_MOST)), source)


def sizes(config: dict, name: str, source: ConfigSource, default: tuple[int, ...] | None = None, low: int = 1) -> tuple:
    """Return a field that is a list of sizes.

    Args:
        default: Value to return if the field is missing or null. If None, the field is required.
        low: Smallest allowed size. It is also the smallest allowed length of the list.

    Raises:
        AdtError: If the field is required but missing, or if its value is not a list of sizes.
    """
    kind = list_of(whole_number(low, MOST.get(name, USUAL_MOST)), low, MOST_LEVELS)
    return tuple(read(config, name, kind, source, default))


_OFF = (None, False)
_NONE = (None, 0)
_ONE = (None, 1)
_ACTIVATIONS = (None, *ACTIVATIONS)
_UNSCALED = (None, "default")
_SUPPORTED: dict[str, tuple] = {
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
"""Fields that change the computation of a decoder, with the values that :mod:`..layers` supports. None means that the
field may be missing."""


def check_supported(config: dict, source: ConfigSource) -> None:
    """Raise an AdtError if a ``config.json`` describes a decoder that :mod:`..layers` does not implement."""
    unsupported = {name: config.get(name) for name, values in _SUPPORTED.items() if config.get(name) not in values}
    if config.get("use_sliding_window") is not False and config.get("sliding_window"):
        unsupported["sliding_window"] = config["sliding_window"]
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        fields = rope if isinstance(rope, dict) else {"type": rope}
        kinds = (fields.get("rope_type"), fields.get("type"))
        if any(kind not in _UNSCALED for kind in kinds) or fields.get("partial_rotary_factor") not in _ONE:
            unsupported[name] = rope
    for name, value in unsupported.items():
        raise AdtError("config_json.unsupported", source=source, name=name, value=shown(value, 60))
