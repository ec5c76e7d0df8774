"""Emu3-Gen: a LLaMA decoder over one vocabulary of text and image, an end token behind every row, and a codec that was made for video.

Wang et al., arXiv 2409.18869. Read in the layout of transformers (``BAAI/Emu3-Gen-hf``). The published settings are guidance 3, temperature 1 and top-k 2048;
the published example ends every prompt with " masterpiece, film grained, best quality.".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import AdtError
from ..checkpoint import Check, Checkpoint, Entry, same
from ..layers import Decoder
from ..layout import decoder_config, decoder_entries, load_tokenizer, named_tokens, read_vocabulary, section
from ..prompter import TokenPrompter
from ..target import Family, Prompt, Target
from ..vq import Codec

BOS, BEGIN_IMAGE, BEGIN_CODES, END_OF_ROW = "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, low quality, normal quality, "
    "jpeg artifacts, signature, watermark, username, blurry."
)
"""What guidance leads away from if nothing else is asked for: the negative prompt of the published example."""
_PIXELS = 720  # per side of the square that it draws best; other images have as many in all
_TEXT = {
    "vocab_size": 184622,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 9216,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}  # values that a config.json may leave out

_CODEC = (
    "codebook_size",
    "embed_dim",
    "latent_channels",
    "double_latent",
    "in_channels",
    "out_channels",
    "temporal_downsample_factor",
    "base_channels",
    "channel_multiplier",
    "num_res_blocks",
    "attn_resolutions",
    "hidden_size",
    "num_attention_heads",
)  # what shapes it


class Emu3Prompter(TokenPrompter):
    """Rows ``<|extra_203|> text <|image start|> rows*columns <|image token|>``; without a text, that of the published negative prompt."""

    def before(self) -> tuple[str, ...]:
        return (BOS,)

    def request(self, text: str, grid: tuple[int, int]) -> str:
        return f"{text}{BEGIN_IMAGE}{grid[0]}*{grid[1]}{BEGIN_CODES}"

    def unconditional(self, prompt: Prompt, grid: tuple[int, int]) -> Prompt:
        return self.encode(NEGATIVE, grid)

    def tokens(self, grid: tuple[int, int]) -> int:
        return grid[0] * (grid[1] + 1)

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Sides of a given ratio are rounded to whole tokens, so either may be half a token too long."""
        rows, columns = grid
        if not min(grid):
            return "both sides must be one token at least"
        fits = (rows - 0.5) * (columns - 0.5) <= usual[0] * usual[1]
        return (
            ""
            if fits
            else f"it may have about as many tokens as a grid of {usual[0]} x {usual[1]}, and that would be {rows} x {columns}"
        )


@dataclass(frozen=True)
class CodecConfig:
    """What is asked of any codec's configuration."""

    resolution: int
    downsample: int
    base_channels: int


class Emu3Codec(Codec):
    """transformers' ``Emu3VQVAE`` for single images.

    It turns 4 equal frames into one of codes and back. Here what is done to every frame alone is done to the only one that counts.
    """

    def __init__(self, values: dict):
        """values: the ``vq_config`` of a checkpoint."""
        from transformers import Emu3VQVAE, Emu3VQVAEConfig  # takes seconds, and no other family needs it

        super().__init__()
        config = Emu3VQVAEConfig(**{name: values[name] for name in _CODEC if name in values})
        model = Emu3VQVAE(config)
        self.encoder, self.decoder, self.quantize = model.encoder, model.decoder, model.quantize
        self.quant_conv, self.post_quant_conv = model.quant_conv, model.post_quant_conv
        self.frames = config.temporal_downsample_factor
        self.config = CodecConfig(_PIXELS, 2 ** (len(config.channel_multiplier) - 1), config.base_channels)

    def encode(self, pixels: Tensor, check: Check | None = None) -> Tensor:
        encoder = self.encoder
        with _watched(encoder, check):
            x = encoder.middle_block(encoder.down_block(encoder.conv_in(pixels.to(self.codebook))))
            x = encoder.conv_out(F.silu(encoder.norm_out(x)))[:, :, None].expand(-1, -1, self.frames, -1, -1)
            for conv in encoder.time_conv:
                x = F.silu(conv(x))
            for block in encoder.time_res_stack:
                x = block(x)
        return self.nearest(self.quant_conv(x)[:, :, 0])

    def decode(self, codes: Tensor, check: Check | None = None) -> Tensor:
        decoder, vectors = self.decoder, self.lookup(codes)[:, :, None]
        with _watched(decoder, check):
            both = torch.cat([self.post_quant_conv(vectors), vectors])
            for block in decoder.time_res_stack:
                both = block(both)
            for conv in decoder.time_conv:
                both = F.silu(conv(both))
            x, vectors = both[:, :, 0].chunk(2)
            x = decoder.up_block(decoder.middle_block(decoder.conv_in(x), vectors), vectors)
            return decoder.conv_out(F.silu(decoder.norm_out(x, vectors))).clamp(-1, 1)


@contextmanager
def _watched(module: nn.Module, check: Check | None) -> Iterator[None]:
    """``check`` is called before every layer of ``module``."""

    def before(*_: object) -> None:
        check()

    handles = [] if check is None else [layer.register_forward_pre_hook(before) for layer in module.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def image_token_ids(vocabulary: dict[str, int]) -> list[int]:
    """Token ids of the image codes, in code order. Raises AdtError if codes are missing."""
    begin, end = "<|visual token ", "|>"
    ids = {
        int(name[len(begin) : -len(end)]): number
        for name, number in vocabulary.items()
        if name.startswith(begin) and name.endswith(end)
    }
    if not ids or sorted(ids) != list(range(len(ids))):
        raise AdtError(
            "config.json's vocabulary_map does not name image tokens 0 to n - 1 as <|visual token ...|>; this is not an Emu3 checkpoint."
        )
    return [ids[code] for code in range(len(ids))]


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    config = decoder_config(
        _TEXT | section(checkpoint.config, "text_config", checkpoint.path), checkpoint.path, qk_norm=False
    )
    vocabulary = read_vocabulary(checkpoint, (BOS, BEGIN_IMAGE, BEGIN_CODES, END_OF_ROW), config.vocab_size)
    codec, codes = Emu3Codec(section(checkpoint.config, "vq_config", checkpoint.path)), image_token_ids(vocabulary)
    if len(codes) != len(codec.codebook):
        raise AdtError(
            f"{checkpoint.path}: config.json's vocabulary_map names {len(codes)} image tokens, but its vq_config {len(codec.codebook)} codes; "
            "use the checkpoint's own config.json."
        )
    decoder = Decoder(config, torch.tensor([*codes, vocabulary[END_OF_ROW]], device="cpu"), len(codes))
    side = _PIXELS // codec.config.downsample
    return Target(checkpoint.path.name, FAMILY.name, decoder, codec, (side, side), row_end=True)


def prompter(target: Target, checkpoint: Checkpoint) -> Emu3Prompter:
    """What reads the prompts of a target."""
    tokenizer = load_tokenizer(checkpoint.folder)
    vocabulary = named_tokens(tokenizer, (BOS, BEGIN_IMAGE, BEGIN_CODES), checkpoint.folder)
    return Emu3Prompter(target.name, tokenizer, vocabulary, target.decoder.config.max_positions)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """The decoder and the codec, under the names of transformers or under those of its first versions, which the published files have."""
    old = any(name.startswith("text_model.") for name in checkpoint.names)
    body, head, codec = (
        ("text_model.model.", "text_model.lm_head.weight", "vqmodel.")
        if old
        else ("model.text_model.", "lm_head.weight", "model.vqmodel.")
    )
    stored = {f"{codec}{name}": tensor for name, tensor in target.codec.state_dict(keep_vars=True).items()}
    counters = {name for name in stored if name.endswith(".num_batches_tracked")} - set(
        checkpoint.names
    )  # of training; never read
    return [
        *decoder_entries(target.decoder, checkpoint, body, head),
        *(same(tensor, name) for name, tensor in stored.items() if name not in counters),
    ]


def _recognises(checkpoint: Checkpoint) -> bool:
    return checkpoint.config.get("model_type") == "emu3"


FAMILY = Family("emu3", _recognises, skeleton, entries, prompter)
