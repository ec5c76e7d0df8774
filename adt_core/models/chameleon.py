"""The Chameleon family: Anole-7B and the bundled model, in the Hugging Face layout.

Every token role is looked up by name in the checkpoint's own vocabulary; no id is hard-coded. Image token
``IMGIMG<letters>Z`` stands for the code whose decimal digits are the letters A..J.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ..errors import AdtError
from .checkpoint import BUNDLED, Check, Checkpoint, assign, resolve
from .decoder import Decoder, DecoderConfig, Layer
from .vq import VQConfig, VQModel

_BOS, _SEPARATOR, _BEGIN_IMAGE = "<s>", "<reserved08706>", "<racm3:break>"


def decoder_config(config: dict, source: Path | str) -> DecoderConfig:
    """Shape of the decoder from a ``config.json`` of the family (also a drafter's, with one layer). AdtError if it has none."""
    def size(name: str, default: object = None) -> int:
        value = config.get(name) or default
        if type(value) is not int or value < 1:
            raise AdtError(f"{source}: config.json says {name} is {value!r}, but a positive whole number was expected; download it again.")
        return value

    heads = size("num_attention_heads")
    if size("hidden_size") % heads:
        raise AdtError(f"{source}: config.json's hidden_size {config['hidden_size']} is not a multiple of num_attention_heads {heads}; download it again.")
    rope = config.get("rope_parameters") or {}
    return DecoderConfig(
        vocab_size=size("vocab_size"),
        hidden_size=size("hidden_size"),
        intermediate_size=size("intermediate_size"),
        num_layers=size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads", heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        max_positions=size("max_position_embeddings", 4096),
    )


def image_token_ids(vocabulary: dict[str, int]) -> list[int]:
    """Token ids of the image codes, in code order. Raises AdtError if codes are missing."""
    digits = str.maketrans("ABCDEFGHIJ", "0123456789")
    names = [name for name in vocabulary if name.startswith("IMGIMG") and name.endswith("Z")]
    ids = {int(name[len("IMGIMG") : -1].translate(digits)): vocabulary[name] for name in names}
    if not ids or sorted(ids) != list(range(len(ids))):
        raise AdtError("config.json's vocabulary_map does not name image tokens 0 to n - 1 as IMGIMG...Z; "
                       "this is not an image-generating Chameleon checkpoint.")
    return [ids[code] for code in range(len(ids))]


def load_layer(layer: Layer, checkpoint: Checkpoint, prefix: str) -> None:
    """Fill a layer from Hugging Face names, fusing what shares an input and expanding per-shard q/k norms."""
    get = lambda name: checkpoint.get(f"{prefix}.{name}")  # noqa: E731
    put = lambda parameter, *names: assign(parameter, [get(n) for n in names], f"{prefix}.{names[0]}", checkpoint.folder, parameter.ndim == 2)  # noqa: E731
    put(layer.qkv, *(f"self_attn.{x}_proj.weight" for x in "qkv"))
    put(layer.out, "self_attn.o_proj.weight")
    put(layer.gate_up, "mlp.gate_proj.weight", "mlp.up_proj.weight")
    put(layer.down, "mlp.down_proj.weight")
    put(layer.mlp_norm, "post_attention_layernorm.weight")
    if layer.input_norm is not None:
        put(layer.input_norm, "input_layernorm.weight")
    if layer.qk_norm_weight is not None:
        config = layer.config
        for parameter, kind in ((layer.qk_norm_weight, "weight"), (layer.qk_norm_bias, "bias")):
            parts = [get(f"self_attn.{x}_norm.{kind}") for x in "qk"]
            heads = (config.num_heads, config.num_kv_heads)
            parts = [part.repeat_interleave(n // len(part), 0) for part, n in zip(parts, heads)]
            assign(parameter, parts, f"{prefix}.self_attn.q_norm.{kind}", checkpoint.folder)


@dataclass
class Target:
    """A loaded target model: ``decoder`` (the transformer) and ``codec`` (the VQGAN) are the weights."""

    name: str
    decoder: Decoder
    codec: VQModel
    tokenizer: Tokenizer
    vocabulary: dict[str, int]
    grid: tuple[int, int]

    @property
    def num_codes(self) -> int:
        return self.decoder.head.shape[1]

    @property
    def downsample(self) -> int:
        """Pixels per token side."""
        return self.codec.config.downsample

    def encode_prompt(self, text: str) -> list[int]:
        """Conditional row ``<s> text <reserved08706> <racm3:break>``. AdtError if empty or too long."""
        if not text.strip():
            raise AdtError("prompt is empty; describe the picture in a few words.")
        ids = self.tokenizer.encode(text.strip(), add_special_tokens=False).ids
        room = self.decoder.config.max_positions - self.grid[0] * self.grid[1] - 3
        if len(ids) > room:
            raise AdtError(f"prompt is {len(ids)} tokens long, and {self.name} has room for {room}; shorten it.")
        return [self.vocabulary[_BOS], *ids, self.vocabulary[_SEPARATOR], self.vocabulary[_BEGIN_IMAGE]]

    def unconditional_prompt(self) -> list[int]:
        """The row without text that guidance pushes away from: ``<s> <racm3:break>``."""
        return [self.vocabulary[_BOS], self.vocabulary[_BEGIN_IMAGE]]


def build(config: dict, source: Path | str) -> tuple[Decoder, VQModel, dict[str, int]]:
    """Empty modules for a ``config.json`` of the family. AdtError if it is of another family."""
    if config.get("model_type") != "chameleon":
        raise AdtError(f"{source} is of the family {config.get('model_type')!r}; this version reads Chameleon checkpoints (Anole) only.")
    vocabulary = config.get("vocabulary_map") or {}
    missing = [name for name in (_BOS, _SEPARATOR, _BEGIN_IMAGE) if name not in vocabulary]
    if missing:
        raise AdtError(f"{source}: config.json's vocabulary_map lacks {', '.join(missing)}; use the checkpoint's own config.json.")
    shape, image_ids = decoder_config(config, source), image_token_ids(vocabulary)
    if not all(type(i) is int and 0 <= i < shape.vocab_size for i in vocabulary.values()):
        raise AdtError(f"{source}: config.json's vocabulary_map names ids outside its vocab_size {shape.vocab_size}; download it again.")
    decoder = Decoder(shape, torch.tensor(image_ids))
    codec = VQModel(VQConfig.from_dict(config.get("vq_config") or {}))
    return decoder, codec, vocabulary


@torch.no_grad()
def load_target(path: str | Path = BUNDLED, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
                check: Check | None = None) -> Target:
    """Load a target from ``"bundled"`` or an Anole-layout folder.

    dtype is the transformer's; the codec works in float32. ``check`` is called before every tensor and may
    raise to cancel. Raises AdtError for missing, damaged or foreign files.
    """
    folder = resolve(path, "target")
    checkpoint = Checkpoint(folder)
    with torch.device("meta"):
        decoder, codec, vocabulary = build(checkpoint.config, folder)
    decoder, codec = decoder.to_empty(device="cpu").to(dtype), codec.to_empty(device="cpu")
    decoder.image_ids = image_ids = torch.tensor(image_token_ids(vocabulary))  # a buffer, emptied like the rest
    for module in (decoder, codec):
        module.requires_grad_(False).eval()
    source = checkpoint.folder
    assign(decoder.embedding, [checkpoint.get("model.embed_tokens.weight")], "model.embed_tokens.weight", source)
    assign(decoder.norm, [checkpoint.get("model.norm.weight")], "model.norm.weight", source)
    assign(decoder.head, [checkpoint.get("lm_head.weight")[image_ids]], "lm_head.weight", source, transpose=True)
    for i, layer in enumerate(decoder.layers):
        if check is not None:
            check()
        load_layer(layer, checkpoint, f"model.layers.{i}")
    for name, parameter in codec.named_parameters():
        if check is not None:
            check()
        assign(parameter, [checkpoint.get(f"model.vqmodel.{name}")], f"model.vqmodel.{name}", source)
    side = codec.config.resolution // codec.config.downsample
    return Target(folder.name if str(path) != BUNDLED else BUNDLED, decoder.to(device), codec.to(device), load_tokenizer(folder), vocabulary, (side, side))


def load_tokenizer(folder: Path) -> Tokenizer:
    for name in ("text_tokenizer.json", "tokenizer.json"):
        if (folder / name).is_file():
            try:
                return Tokenizer.from_file(str(folder / name))
            except Exception as error:  # the tokenizers library raises bare Exception
                raise AdtError(f"{folder / name} is not a readable tokenizer ({error}); download it again.") from error
    raise AdtError(f"{folder} has no tokenizer.json; download it from the model's page into that folder.")


