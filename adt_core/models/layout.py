"""The names that Hugging Face checkpoints have for a decoder: its shape in ``config.json``, its tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..errors import AdtError
from .checkpoint import Checkpoint, Entry, same
from .config import DecoderConfig
from .layers import Decoder, Layer
from .quantised import store

Turn = Callable[[Tensor], Tensor]


def section(config: dict, name: str, source: Path | str) -> dict:
    """The part ``name`` of a ``config.json``. AdtError if it has none."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise AdtError(f"{source}: config.json has no {name}; use the checkpoint's own config.json.")
    return value


def whole_number(config: dict, name: str, source: Path | str, default: object = None) -> int:
    """A size in a ``config.json``. AdtError if it is none."""
    value = config.get(name) or default
    if type(value) is not int or value < 1:
        raise AdtError(
            f"{source}: config.json says {name} is {value!r}, but a positive whole number was expected; download it again."
        )
    return value


def decoder_config(config: dict, source: Path | str, **changes) -> DecoderConfig:
    """Shape of a decoder from a ``config.json`` (also a drafter's, with one layer). AdtError if it has none."""

    def size(name: str, default: object = None) -> int:
        return whole_number(config, name, source, default)

    heads = size("num_attention_heads")
    if size("hidden_size") % heads:
        raise AdtError(
            f"{source}: config.json's hidden_size {config['hidden_size']} is not a multiple of num_attention_heads {heads}; download it again."
        )
    rope = config.get("rope_parameters") or {}
    return DecoderConfig(
        **{
            "vocab_size": size("vocab_size"),
            "hidden_size": size("hidden_size"),
            "intermediate_size": size("intermediate_size"),
            "num_layers": size("num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": size("num_key_value_heads", heads),
            "rms_norm_eps": float(config.get("rms_norm_eps", 1e-5)),
            "rope_theta": float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            "max_positions": size("max_position_embeddings", 4096),
            **changes,
        }
    )


def layer_entries(layer: Layer, checkpoint: Checkpoint, prefix: str, turn: Turn | None = None) -> list[Entry]:
    """Where the parameters of a layer come from: what shares an input is fused.

    turn: applied to the rows of q and k, for a model whose rotary pairs are laid out in another way than ours.
    """
    c = layer.config
    h, kv, wide = c.hidden_size, c.num_kv_heads * c.head_dim, c.intermediate_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def fused_qkv(parts: list[Tensor]) -> Tensor:
        q, k, v = parts
        return torch.cat([q, k, v] if turn is None else [turn(q), turn(k), v]).T

    def put(name: str) -> Callable[[Tensor], None] | None:
        scale = getattr(layer, f"{name}_scale")
        return None if scale is None else partial(store, getattr(layer, name), scale)

    entries = [
        Entry(
            layer.qkv,
            tuple(f"{attention}.{x}_proj.weight" for x in "qkv"),
            ((h, h), (kv, h), (kv, h)),
            make=fused_qkv,
            put=put("qkv"),
        ),
        same(layer.out, f"{attention}.o_proj.weight", True, put("out")),
        Entry(
            layer.gate_up,
            (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            ((wide, h), (wide, h)),
            True,
            put=put("gate_up"),
        ),
        same(layer.down, f"{mlp}.down_proj.weight", True, put("down")),
        same(layer.mlp_norm, f"{prefix}.post_attention_layernorm.weight"),
    ]
    if layer.input_norm is not None:
        entries.append(same(layer.input_norm, f"{prefix}.input_layernorm.weight"))
    if layer.qk_norm_weight is not None:
        entries += [
            _qk_norm(parameter, c, checkpoint, attention, kind)
            for parameter, kind in ((layer.qk_norm_weight, "weight"), (layer.qk_norm_bias, "bias"))
        ]
    return entries


def unpaired(head_dim: int) -> Turn:
    """A ``turn`` for models that rotate neighbouring elements of a head together: the first of every pair comes to its first half, the second to its second."""
    return lambda weight: weight.view(-1, head_dim // 2, 2, weight.shape[-1]).transpose(1, 2).reshape_as(weight)


def paired(head_dim: int) -> Turn:
    """The inverse of :func:`unpaired`."""
    return lambda weight: weight.reshape(-1, 2, head_dim // 2, weight.shape[-1]).transpose(1, 2).reshape_as(weight)


def _qk_norm(parameter: Tensor, c: DecoderConfig, checkpoint: Checkpoint, attention: str, kind: str) -> Entry:
    """Norms are stored per head, or per shard of the machine that trained the model; then heads of a shard share one (Lumina-mGPT)."""
    names, heads = tuple(f"{attention}.{x}_norm.{kind}" for x in "qk"), (c.num_heads, c.num_kv_heads)

    def rows(name: str, most: int) -> int:
        stored = checkpoint.shape(name)[0] if name in checkpoint.names else most
        return stored if stored and most % stored == 0 else most

    def expand(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.repeat_interleave(n // len(part), 0) for part, n in zip(parts, heads)])

    return Entry(parameter, names, tuple((rows(name, n), c.head_dim) for name, n in zip(names, heads)), make=expand)


def body_entries(decoder: Decoder, checkpoint: Checkpoint, prefix: str, turn: Turn | None = None) -> list[Entry]:
    """Layers and final norm under ``prefix``; ``turn`` as for :func:`layer_entries`."""
    layers = [
        entry
        for i, layer in enumerate(decoder.layers)
        for entry in layer_entries(layer, checkpoint, f"{prefix}layers.{i}", turn)
    ]
    return [*layers, same(decoder.norm, f"{prefix}norm.weight")]


def decoder_entries(
    decoder: Decoder,
    checkpoint: Checkpoint,
    prefix: str = "model.",
    head: str = "lm_head.weight",
    turn: Turn | None = None,
) -> list[Entry]:
    """Embedding, layers and final norm under ``prefix``, and the image rows of ``head``."""
    c, codes = decoder.config, decoder.head.shape[1]
    rows = Entry(
        decoder.head,
        (head,),
        ((c.vocab_size, c.hidden_size),),
        make=lambda parts: parts[0][decoder.image_ids[:codes].cpu()].T,
    )
    return [
        same(decoder.embedding, f"{prefix}embed_tokens.weight"),
        rows,
        *body_entries(decoder, checkpoint, prefix, turn),
    ]


def read_vocabulary(checkpoint: Checkpoint, needed: tuple[str, ...], size: int | None = None) -> dict[str, int]:
    """The checkpoint's ``vocabulary_map``. AdtError if it lacks one of the ``needed`` names, or names ids from ``size`` (``vocab_size``) on."""
    vocabulary = checkpoint.config.get("vocabulary_map") or {}
    missing = [name for name in needed if name not in vocabulary]
    if missing:
        raise AdtError(
            f"{checkpoint.path}: config.json's vocabulary_map lacks {', '.join(missing)}; use the checkpoint's own config.json."
        )
    size = size or checkpoint.config.get("vocab_size") or 0
    if not all(type(i) is int and 0 <= i < size for i in vocabulary.values()):
        raise AdtError(
            f"{checkpoint.path}: config.json's vocabulary_map names ids outside its vocab_size {size}; download it again."
        )
    return vocabulary


def find_tokenizer(folder: Path, names: tuple[str, ...] = ("text_tokenizer.json", "tokenizer.json")) -> Path | None:
    """The tokenizer file of a checkpoint folder."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. AdtError if there is none."""
    file = find_tokenizer(folder)
    if file is None:
        raise AdtError(f"{folder} has no tokenizer.json; download it from the model's page into that folder.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise AdtError(f"{file} is not a readable tokenizer ({error}); download it again.") from error


def named_tokens(tokenizer: Tokenizer, names: tuple[str, ...], folder: Path) -> dict[str, int]:
    """Ids of the tokens ``names``. AdtError if the tokenizer lacks one."""
    ids = {name: tokenizer.token_to_id(name) for name in names}
    missing = [name for name, number in ids.items() if number is None]
    if missing:
        raise AdtError(f"{folder}: tokenizer.json lacks {', '.join(missing)}; use the checkpoint's own tokenizer.json.")
    return ids
