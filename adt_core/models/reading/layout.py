"""How Hugging Face checkpoints describe a decoder: fields of ``config.json``, names of tensors and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
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
from ..vq import VQConfig, check_channels
from .checkpoint import Checkpoint, Entry, same, transposed
from .fields import check_maths, read, section, size

_SHORT_PROMPT, _LONG_PROMPT = 64, 1024
"""Positions that a prompt must have; and those that it gets where a configuration leaves it fewer."""


def decoder_config(config: dict, source: Path | str, **changes: Any) -> DecoderConfig:
    """Shape of a decoder, or of a drafter, from a ``config.json``. AdtError if a field is missing or wrong.

    changes: fields of the result that the ``config.json`` does not decide.
    """
    stated = partial(size, config, source=source)
    hidden, heads, width = stated("hidden_size"), stated("num_attention_heads"), config.get("head_dim") or 0
    if hidden % heads and not width:
        problem = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        raise AdtError(f"{source}: config.json's {problem}; download it again.")
    check_maths(config, source)
    rope = section(config, "rope_parameters", source) if config.get("rope_parameters") else {}
    if rope.get("rope_theta") is None:
        rope = config
    shape: dict[str, Any] = {
        "vocab_size": stated("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": stated("intermediate_size"),
        "num_layers": stated("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": stated("num_key_value_heads", default=heads),
        "rms_norm_eps": float(read(config, "rms_norm_eps", number(0, 0.1), source, 1e-5)),
        "rope_theta": float(read(rope, "rope_theta", number(1, 1e12), source, 1e4)),
        "max_positions": stated("max_position_embeddings", default=4096),
        "activation": config.get("hidden_activation") or config.get("hidden_act") or "silu",
        "key_width": width and stated("head_dim"),
    }
    return DecoderConfig(**shape | changes)


def with_room(config: DecoderConfig, tokens: int) -> DecoderConfig:
    """The same with positions for an image of so many tokens, and its prompt.

    Some published configurations state fewer positions than their images have. Rotations are computed for any number.
    """
    short = config.max_positions < tokens + _SHORT_PROMPT
    return replace(config, max_positions=tokens + _LONG_PROMPT) if short else config


def layer_entries(layer: Layer, checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """Where the parameters of a layer come from; matrices with the same input are fused.

    Ours rotates the two halves of a head together, so the heads of other models are put in :func:`head_order`.
    """
    c = layer.config
    h, wide = c.hidden_size, c.intermediate_size
    every, kv = c.query_width, c.num_kv_heads * c.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = [f"{attention}.{x}_proj.weight" for x in "qkv"]
    gate_up = {f"{mlp}.{x}_proj.weight": (wide, h) for x in ("gate", "up")}
    if f"{mlp}.gate_up_proj.weight" in checkpoint.names:
        gate_up = {f"{mlp}.gate_up_proj.weight": (2 * wide, h)}
    fused = _fused(c)

    def put(name: str) -> Callable[[Tensor], None] | None:
        scale = getattr(layer, f"{name}_scale")
        return None if scale is None else partial(store, getattr(layer, name), scale)

    without = gate_up if c.qkv_bias else (*qkv, *gate_up)
    bias = next((name for name in without if name.replace(".weight", ".bias") in checkpoint.names), None)
    if bias is not None:
        raise AdtError(f"{checkpoint.path} has a bias for {bias}, which is not supported; choose another model.")
    entries = [
        Entry(layer.qkv, tuple(qkv), ((every, h), (kv, h), (kv, h)), lambda parts: fused(parts).T, put("qkv")),
        same(layer.out, f"{attention}.o_proj.weight", True, put("out")),
        Entry(layer.gate_up, tuple(gate_up), tuple(gate_up.values()), transposed, put("gate_up")),
        same(layer.down, f"{mlp}.down_proj.weight", True, put("down")),
        same(layer.mlp_norm, f"{prefix}.post_attention_layernorm.weight"),
    ]
    if layer.qkv_bias is not None:
        biases = tuple(name.replace(".weight", ".bias") for name in qkv)
        entries.append(Entry(layer.qkv_bias, biases, ((every,), (kv,), (kv,)), fused))
    names = "input_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"
    others = zip(names, (layer.input_norm, layer.out_norm, layer.down_norm))
    entries += [same(norm, f"{prefix}.{name}.weight") for name, norm in others if norm is not None]
    norms = ((layer.qk_norm_weight, "weight"), (layer.qk_norm_bias, "bias"))
    return entries + [_qk_norm(norm, c, checkpoint, attention, kind) for norm, kind in norms if norm is not None]


def _fused(c: DecoderConfig) -> Callable[[list[Tensor]], Tensor]:
    """What joins q, k and v [rows, ...], the heads of q and k in :func:`head_order`."""
    order = head_order(c)
    return lambda parts: torch.cat([*(reordered(part, order) for part in parts[:2]), parts[2]])


def reordered(part: Tensor, order: Tensor | None) -> Tensor:
    """Rows [heads * head_dim, ...] of q or k, the elements of every head in ``order``; as they are without one."""
    return part if order is None else part.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


def head_order(c: DecoderConfig) -> Tensor | None:
    """Where each element of our heads of q and k is in the checkpoint's [head_dim]; None if it is the same place.

    Models with a ``grid_rope`` rotate neighbouring elements together. Those with ``axes`` rotate the halves of the part
    that turns; the rest stands behind that.
    """
    if c.grid_rope is not None:
        return torch.arange(c.head_dim).view(-1, 2).T.flatten()
    if c.axes is not None:
        turns, half = sum(c.axes), c.head_dim // 2
        first, second, rest = torch.arange(c.head_dim).split([turns, turns, c.head_dim - 2 * turns])
        return torch.cat([first, rest[: half - turns], second, rest[half - turns :]])
    return None


def _qk_norm(parameter: Tensor, c: DecoderConfig, checkpoint: Checkpoint, attention: str, kind: str) -> Entry:
    """Norms of q and k [heads, head dim]. Lumina-mGPT has fewer rows; each then is for several heads in a row."""
    names, heads = tuple(f"{attention}.{x}_norm.{kind}" for x in "qk"), (c.num_heads, c.num_kv_heads)
    stored = [checkpoint.sizes(name)[0] if name in checkpoint.names else n for name, n in zip(names, heads)]
    shapes = tuple((rows if rows and n % rows == 0 else n, c.head_dim) for rows, n in zip(stored, heads))

    def expand(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.repeat_interleave(n // len(part), 0) for part, n in zip(parts, heads)])

    return Entry(parameter, names, shapes, expand)


def body_entries(decoder: Decoder, checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """Layers and final norm under ``prefix``."""
    entries = [same(decoder.norm, f"{prefix}norm.weight")]
    for i, layer in enumerate(decoder.layers):
        entries += layer_entries(cast(Layer, layer), checkpoint, f"{prefix}layers.{i}")
    return entries


def decoder_entries(
    decoder: Decoder, checkpoint: Checkpoint, prefix: str = "model.", head: str = "lm_head.weight", rows: int = 0
) -> list[Entry]:
    """Embedding, layers and final norm under ``prefix``; of ``head`` the rows of image tokens.

    rows: of the head, if it is not for the whole vocabulary.
    """
    c, codes = decoder.config, decoder.image_ids[: decoder.head.shape[1]].cpu()
    text_config = checkpoint.config.get("text_config")
    fields = text_config if isinstance(text_config, dict) else checkpoint.config
    if fields.get("tie_word_embeddings") and head != f"{prefix}embed_tokens.weight":
        problem = "config.json sets tie_word_embeddings, which this kind of model does not support"
        raise AdtError(f"{checkpoint.path}: {problem}; use the checkpoint's own config.json.")
    return [
        same(decoder.embedding, f"{prefix}embed_tokens.weight"),
        Entry(decoder.head, (head,), ((rows or c.vocab_size, c.hidden_size),), lambda parts: parts[0][codes].T),
        *body_entries(decoder, checkpoint, prefix),
    ]


def read_vocabulary(checkpoint: Checkpoint, needed: tuple[str, ...], vocab_size: int = 0) -> dict[str, int]:
    """Token ids by name. AdtError if a ``needed`` name is missing, or an id is not below ``vocab_size``.

    That is the field of config.json, unless it is given.
    """
    source = f"{checkpoint.path}: config.json's vocabulary_map"
    vocabulary = section({"vocabulary_map": {}, **checkpoint.config}, "vocabulary_map", checkpoint.path)
    missing = ", ".join(name for name in needed if name not in vocabulary)
    if missing:
        raise AdtError(f"{source} lacks {missing}; use the checkpoint's own config.json.")
    vocab_size = vocab_size or size(checkpoint.config, "vocab_size", checkpoint.path)
    if not all(map(whole_number(0, vocab_size - 1).fits, vocabulary.values())):
        raise AdtError(f"{source} contains ids outside vocab_size {vocab_size}; download it again.")
    return vocabulary


def image_tokens(vocabulary: dict[str, int], begin: str, end: str, model: str) -> list[int]:
    """Ids of the image tokens, which are named ``begin`` code ``end``, in code order. AdtError if a code is missing.

    The digits of a code may be the letters A to J.
    """
    digits = str.maketrans("ABCDEFGHIJ", "0123456789")
    names = [name for name in vocabulary if name.startswith(begin) and name.endswith(end)]
    codes = {name: name[len(begin) : -len(end)].translate(digits) for name in names}
    ids = {int(code): vocabulary[name] for name, code in codes.items() if re.fullmatch("[0-9]{1,9}", code)}
    if not ids or sorted(ids) != list(range(len(ids))):
        problem = f"does not name image tokens 0 to n - 1 as {begin}...{end}; this is not an {model} checkpoint"
        raise AdtError(f"config.json's vocabulary_map {problem}.")
    return [ids[code] for code in range(len(ids))]


def codec_shape(checkpoint: Checkpoint, prefix: str, blocks: str) -> dict[str, Any]:
    """The fields of a ``VQConfig`` that the shapes of a codec's tensors say. AdtError for shapes that make no sense.

    prefix: of their names. blocks: how the encoder numbers levels and their blocks, such as "down.{}.block.{}".
    """
    convolution = f"{prefix}encoder.{blocks}.conv1.weight"
    level, block = convolution.format("{}", 0), convolution.format(0, "{}")
    base = checkpoint.sizes(f"{prefix}encoder.conv_in.weight")[0]
    width, latent, *_ = checkpoint.sizes(f"{prefix}quant_conv.weight", 2)
    widths = [checkpoint.sizes(level.format(i))[0] for i in range(checkpoint.count(level))]
    if not min(base, width, latent, *widths):
        raise AdtError(
            f"{checkpoint.path}: the shapes of the codec's tensors do not fit together; download the codec again."
        )
    return {
        "embed_dim": width,
        "latent_channels": latent,
        "base_channels": base,
        "channel_multiplier": tuple(wide // base for wide in widths),
        "num_res_blocks": checkpoint.count(block),
    }


def codec_config(checkpoint: Checkpoint, prefix: str, usual: VQConfig) -> VQConfig:
    """``usual``, with the shapes of a codec's tensors under ``prefix`` if there are any. AdtError for nonsense."""
    if f"{prefix}encoder.conv_in.weight" not in checkpoint.names:
        return usual
    codes, width = checkpoint.sizes(f"{prefix}quantize.embedding.weight", 2)[:2]
    found = replace(usual, num_embeddings=codes, **codec_shape(checkpoint, prefix, "down.{}.block.{}"))
    if not codes or width != found.embed_dim or found.downsample > found.resolution:
        raise AdtError(
            f"{checkpoint.path}: the shapes of the codec's tensors do not fit together; download the codec again."
        )
    check_channels(found.in_channels, [found.base_channels, *found.widths], checkpoint.path)
    return found


def numbered_tokens(words: int, first: int, codes: int, source: Path, field: str = "vocab_size") -> list[int]:
    """Ids of image tokens that have no names: code n is ``first`` + n. AdtError if the vocabulary ends before.

    words: how many there are, as the ``field`` of the ``config.json`` says.
    """
    if first + codes > words:
        problem = f"{field} {words} is too small for the {codes} image tokens"
        raise AdtError(f"{source}: config.json's {problem}; use the checkpoint's own config.json.")
    return [*range(first, first + codes)]
