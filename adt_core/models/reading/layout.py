"""Layout of Hugging Face checkpoints: configuration, tensor names and token ids of a decoder.

An entry (:class:`.entries.Entry`) states which tensors of the checkpoint a parameter is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import AdtError
from ...untrusted import number, whole_number
from ..config import DecoderConfig
from ..layers import Decoder, Layer
from ..quantised import store
from .checkpoint import Checkpoint
from .entries import Entry, copy_entry, transposed
from .fields import check_supported, read, section, size

_MIN_PROMPT = 64  # minimum number of positions that a configuration must leave for the prompt
_RAISED_PROMPT = 1024  # number of positions that the prompt gets if a configuration leaves fewer


def decoder_config(config: dict, source: Path | str, **changes: Any) -> DecoderConfig:
    """Return the shape of a decoder, or of a drafter, from a ``config.json``.

    Args:
        **changes: Fields of the result, which take precedence over the ``config.json``.

    Raises:
        AdtError: If a field is missing or has an unsupported value.
    """
    read_size = partial(size, config, source=source)
    hidden = read_size("hidden_size")
    heads = read_size("num_attention_heads")
    has_head_dim = bool(config.get("head_dim"))
    if hidden % heads and not has_head_dim:
        raise AdtError("config_json.heads", source=source, hidden=hidden, heads=heads)
    check_supported(config, source)
    rope = section(config, "rope_parameters", source) if config.get("rope_parameters") else {}
    if rope.get("rope_theta") is None:
        rope = config
    shape: dict[str, Any] = {
        "vocab_size": read_size("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": read_size("intermediate_size"),
        "num_layers": read_size("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": read_size("num_key_value_heads", default=heads),
        "rms_norm_eps": float(read(config, "rms_norm_eps", number(0, 0.1), source, 1e-5)),
        "rope_theta": float(read(rope, "rope_theta", number(1, 1e12), source, 1e4)),
        "max_positions": read_size("max_position_embeddings", default=4096),
        "activation": config.get("hidden_activation") or config.get("hidden_act") or "silu",
        "explicit_head_dim": read_size("head_dim") if has_head_dim else 0,
    }
    return DecoderConfig(**shape | changes)


def with_min_positions(config: DecoderConfig, tokens: int) -> DecoderConfig:
    """Return the shape with enough positions for an image and its prompt.

    Some published configurations state fewer positions than the model's own images have tokens.
    """
    if config.max_positions >= tokens + _MIN_PROMPT:
        return config
    return replace(config, max_positions=tokens + _RAISED_PROMPT)


def layer_entries(layer: Layer, checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """Return the entries of a layer. q, k and v are concatenated to one matrix, gate and up to another.

    Args:
        prefix: Prefix of the layer's tensors, without the final dot.

    Raises:
        AdtError: If a matrix has a bias that is not supported.
    """
    c = layer.config
    h = c.hidden_size
    attention = f"{prefix}.self_attn"
    qkv = tuple(f"{attention}.{x}_proj.weight" for x in "qkv")
    heads = (c.query_width, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim)
    gate_up = _gate_up_shapes(c, checkpoint, prefix)
    _refuse_biases(checkpoint, gate_up if c.qkv_bias else (*qkv, *gate_up))
    fuse = _fuse_qkv(c)

    def put(name: str) -> Callable[[Tensor], None] | None:
        scale = getattr(layer, f"{name}_scale")
        return None if scale is None else partial(store, getattr(layer, name), scale)

    entries = [
        Entry(layer.qkv, qkv, tuple((rows, h) for rows in heads), lambda parts: fuse(parts).T, put("qkv")),
        copy_entry(layer.out, f"{attention}.o_proj.weight", True, put("out")),
        Entry(layer.gate_up, tuple(gate_up), tuple(gate_up.values()), transposed, put("gate_up")),
        copy_entry(layer.down, f"{prefix}.mlp.down_proj.weight", True, put("down")),
        copy_entry(layer.mlp_norm, f"{prefix}.post_attention_layernorm.weight"),
    ]
    if layer.qkv_bias is not None:
        biases = tuple(name.replace(".weight", ".bias") for name in qkv)
        entries.append(Entry(layer.qkv_bias, biases, tuple((rows,) for rows in heads), fuse))
    names = ("input_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
    optional = zip(names, (layer.input_norm, layer.out_norm, layer.down_norm))
    entries += [copy_entry(norm, f"{prefix}.{name}.weight") for name, norm in optional if norm is not None]
    qk_norms = ((layer.qk_norm_weight, "weight"), (layer.qk_norm_bias, "bias"))
    return entries + [_qk_norm(norm, c, checkpoint, attention, kind) for norm, kind in qk_norms if norm is not None]


def _gate_up_shapes(c: DecoderConfig, checkpoint: Checkpoint, prefix: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the MLP's gate and up matrices. Some models store both as one matrix."""
    if f"{prefix}.mlp.gate_up_proj.weight" in checkpoint.names:
        return {f"{prefix}.mlp.gate_up_proj.weight": (2 * c.intermediate_size, c.hidden_size)}
    return {f"{prefix}.mlp.{x}_proj.weight": (c.intermediate_size, c.hidden_size) for x in ("gate", "up")}


def _refuse_biases(checkpoint: Checkpoint, weights: Iterable[str]) -> None:
    """Raise an AdtError if one of these weights has a bias."""
    biased = next((name for name in weights if name.replace(".weight", ".bias") in checkpoint.names), None)
    if biased is not None:
        raise AdtError("model.bias", path=checkpoint.path, biased=biased)


def _fuse_qkv(c: DecoderConfig) -> Callable[[list[Tensor]], Tensor]:
    """Return a function that reorders the heads of q and k, and concatenates q, k and v along dimension 0."""
    order = head_order(c)
    return lambda parts: torch.cat([*(reorder_heads(part, order) for part in parts[:2]), parts[2]])


def reorder_heads(part: Tensor, order: Tensor | None) -> Tensor:
    """Reorder the elements of every head of q or k [heads * head_dim, ...]; ``order`` is as in :func:`head_order`."""
    return part if order is None else part.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


def head_order(c: DecoderConfig) -> Tensor | None:
    """Return how to reorder the elements of each head of q and k, so that :mod:`..rotary` rotates the right pairs.

    The result is ``order`` [head_dim] int64: element i of a head in this package is element ``order[i]`` of the head in
    the checkpoint. None stands for the same order.

    :mod:`..rotary` rotates element i together with element i + head_dim / 2. In checkpoints of models with
    ``grid_rope``, a pair is two neighbouring elements. In checkpoints of models with ``mrope_section``, only the first
    2 * sum(mrope_section) elements of a head are rotated, and element i forms a pair with element
    i + sum(mrope_section).
    """
    # For head_dim 8:
    #   with grid_rope, the checkpoint's pairs are (0, 1), (2, 3) and so on: [0, 2, 4, 6, 1, 3, 5, 7]
    #   with mrope_section (1, 1, 0), they are (0, 2) and (1, 3); 4 to 7 are not rotated: [0, 1, 4, 5, 2, 3, 6, 7]
    if c.grid_rope is not None:
        return torch.arange(c.head_dim).view(-1, 2).T.flatten()
    if c.mrope_section is not None:
        pairs = sum(c.mrope_section)
        first, second, rest = torch.arange(c.head_dim).split([pairs, pairs, c.head_dim - 2 * pairs])
        unpaired = c.head_dim // 2 - pairs
        return torch.cat([first, rest[:unpaired], second, rest[unpaired:]])
    return None


def _qk_norm(parameter: Tensor, c: DecoderConfig, checkpoint: Checkpoint, attention: str, kind: str) -> Entry:
    """Return the entry of the weights or biases of the norms of q and k: [heads of q and k, head dim].

    Lumina-mGPT stores fewer rows than heads. Several consecutive heads then use the same row.

    Args:
        attention: Prefix of the layer's attention tensors, without the final dot.
        kind: "weight" or "bias".
    """
    names = tuple(f"{attention}.{x}_norm.{kind}" for x in "qk")
    heads = (c.num_heads, c.num_kv_heads)
    stored = [checkpoint.sizes(name)[0] if name in checkpoint.names else n for name, n in zip(names, heads)]
    shapes = tuple((rows if rows and n % rows == 0 else n, c.head_dim) for rows, n in zip(stored, heads))

    def expand(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.repeat_interleave(n // len(part), 0) for part, n in zip(parts, heads)])

    return Entry(parameter, names, shapes, expand)


def body_entries(decoder: Decoder, checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """Return the entries of all layers and the final norm. The names of their tensors begin with ``prefix``."""
    entries = [copy_entry(decoder.norm, f"{prefix}norm.weight")]
    for i, layer in enumerate(decoder.layers):
        entries += layer_entries(cast(Layer, layer), checkpoint, f"{prefix}layers.{i}")
    return entries


def decoder_entries(
    decoder: Decoder, checkpoint: Checkpoint, prefix: str = "model.", head: str = "lm_head.weight", rows: int = 0
) -> list[Entry]:
    """Return the entries of embedding, layers, final norm and head. The head gets only the rows of the codes.

    Args:
        prefix: Prefix of all tensors except the head.
        rows: Number of rows of the head's tensor; 0 for one row per token of the vocabulary.

    Raises:
        AdtError: If the configuration ties embedding and head, but the family expects a separate head.
    """
    c = decoder.config
    codes = decoder.image_ids[: decoder.head.shape[1]].cpu()
    text_config = checkpoint.config.get("text_config")
    fields = text_config if isinstance(text_config, dict) else checkpoint.config
    if fields.get("tie_word_embeddings") and head != f"{prefix}embed_tokens.weight":
        raise AdtError("config_json.tied", path=checkpoint.path)
    return [
        copy_entry(decoder.embedding, f"{prefix}embed_tokens.weight"),
        Entry(decoder.head, (head,), ((rows or c.vocab_size, c.hidden_size),), lambda parts: parts[0][codes].T),
        *body_entries(decoder, checkpoint, prefix),
    ]


def read_vocabulary(checkpoint: Checkpoint, needed: tuple[str, ...], vocab_size: int = 0) -> dict[str, int]:
    """Return the ``vocabulary_map`` of a config.json: token ids by name.

    Args:
        needed: Names that the map must contain.
        vocab_size: Size of the vocabulary; 0 for the field ``vocab_size`` of the config.json.

    Raises:
        AdtError: If a name is missing, or if an id is not an integer from 0 to ``vocab_size`` - 1.
    """
    source = f"{checkpoint.path}: config.json's vocabulary_map"
    vocabulary = section({"vocabulary_map": {}, **checkpoint.config}, "vocabulary_map", checkpoint.path)
    missing = ", ".join(name for name in needed if name not in vocabulary)
    if missing:
        raise AdtError("tokens.missing", source=source, missing=missing)
    vocab_size = vocab_size or size(checkpoint.config, "vocab_size", checkpoint.path)
    if not all(map(whole_number(0, vocab_size - 1).fits, vocabulary.values())):
        raise AdtError("tokens.outside", source=source, size=vocab_size)
    return vocabulary


def image_tokens(vocabulary: dict[str, int], begin: str, end: str, model: str) -> list[int]:
    """Return the ids of image tokens whose names contain their codes, in code order.

    For example, with ``begin`` "<|visual token " and ``end`` "|>", "<|visual token 000042|>" is the token of code 42.
    The letters A to J may replace the digits 0 to 9.

    Raises:
        AdtError: If a code is missing.
    """
    digits = str.maketrans("ABCDEFGHIJ", "0123456789")
    names = [name for name in vocabulary if name.startswith(begin) and name.endswith(end)]
    codes = {name: name[len(begin) : -len(end)].translate(digits) for name in names}
    ids = {int(code): vocabulary[name] for name, code in codes.items() if re.fullmatch("[0-9]{1,9}", code)}
    if not ids or sorted(ids) != list(range(len(ids))):
        raise AdtError("vocabulary.names", begin=begin, end=end, model=model)
    return [ids[code] for code in range(len(ids))]


def consecutive_ids(vocab_size: int, first: int, codes: int, source: Path, field: str = "vocab_size") -> list[int]:
    """Return consecutive ids for image tokens that the vocabulary does not name: code n has the id ``first`` + n.

    Raises:
        AdtError: If the vocabulary is too small. ``field`` is the field of the config.json with its size.
    """
    if first + codes > vocab_size:
        raise AdtError("config_json.vocabulary", source=source, field=field, vocab_size=vocab_size, codes=codes)
    return [*range(first, first + codes)]
