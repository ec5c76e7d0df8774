"""Emu3-Gen: a LLaMA decoder over text and image tokens, an end token behind every row, a codec made for video.

Wang et al., arXiv 2409.18869. Read in the layout of transformers (``BAAI/Emu3-Gen-hf``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdtError
from ...untrusted import SWITCH
from ..downloads import Download, Published
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint, Entry, same
from ..reading.fields import Source, read, section, size, sizes
from ..reading.layout import decoder_config, decoder_entries, image_tokens, read_vocabulary, with_room
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import Codec, Quantizer, check_channels

BOS, BEGIN_IMAGE, BEGIN_CODES, END_OF_ROW = "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
"""The negative prompt of the published example, for images without another one."""
_PIXELS = 720  # per side of the square that it draws best; images of other shapes have as many pixels in all
# Values that a config.json may leave out.
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
}
_CODEC_SIZES = (
    "codebook_size embed_dim latent_channels in_channels out_channels temporal_downsample_factor base_channels "
    "num_res_blocks hidden_size num_attention_heads"
)
"""Sizes in a ``vq_config`` that say the codec's shape, with two lists and a switch; other fields are not used."""


class Emu3Prompter(TokenPrompter):
    """Rows ``<|extra_203|> text <|image start|> rows*columns <|image token|>``; in unconditional ones, NEGATIVE."""

    BOS, IN_TOKENIZER = BOS, (BOS, BEGIN_IMAGE, BEGIN_CODES)

    def request(self, text: str, grid: tuple[int, int]) -> str:
        return f"{text}{BEGIN_IMAGE}{grid[0]}*{grid[1]}{BEGIN_CODES}"

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return self.encode(NEGATIVE, grid)

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Sides of a given ratio are rounded to whole tokens, so either may be half a token too long."""
        rows, columns = grid
        if not min(grid):
            return "both sides must be at least one token"
        if (rows - 0.5) * (columns - 0.5) <= usual[0] * usual[1]:
            return ""
        most = f"it supports about as many tokens as {usual[0]} x {usual[1]}"
        return f"{most}, but this size has {rows} x {columns}"


class Emu3Codec(Codec):
    """transformers' ``Emu3VQVAE`` for single images.

    The original codes 4 frames as one. Here these are equal, so layers that work on each frame alone run once.
    """

    def __init__(self, values: dict, source: Source):
        """values: the ``vq_config`` of the checkpoint ``source``. AdtError if they make no sense."""
        from transformers import Emu3VQVAE, Emu3VQVAEConfig  # takes seconds, and no other family needs it

        super().__init__()
        config = Emu3VQVAEConfig(**_codec_fields(values, source))
        widths = [config.base_channels * multiplier for multiplier in config.channel_multiplier]
        for colours in (config.in_channels, config.out_channels):
            check_channels(colours, widths, source)
        if config.hidden_size % config.num_attention_heads:
            problem = f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads"
            raise AdtError(f"{source}: config.json's vq_config: {problem}; use the checkpoint's own config.json.")
        model = Emu3VQVAE(config)
        self.encoder, self.decoder = model.encoder, model.decoder
        self.quantize = Quantizer(config.codebook_size, config.embed_dim)
        self.quant_conv, self.post_quant_conv = model.quant_conv, model.post_quant_conv
        self.frames = config.temporal_downsample_factor
        self.downsample, self.base_channels = 2 ** (len(config.channel_multiplier) - 1), config.base_channels

    def _encode(self, pixels: Tensor) -> Tensor:
        encoder = self.encoder
        x = encoder.middle_block(encoder.down_block(encoder.conv_in(pixels)))
        x = encoder.conv_out(F.silu(encoder.norm_out(x)))[:, :, None].expand(-1, -1, self.frames, -1, -1)
        for conv in encoder.time_conv:
            x = F.silu(conv(x))
        for block in encoder.time_res_stack:
            x = block(x)
        return self.quant_conv(x)[:, :, 0]

    def _decode(self, vectors: Tensor) -> Tensor:
        decoder, vectors = self.decoder, vectors[:, :, None]
        both = torch.cat([self.post_quant_conv(vectors), vectors])
        for block in decoder.time_res_stack:
            both = block(both)
        for conv in decoder.time_conv:
            both = F.silu(conv(both))
        x, vectors = both[:, :, 0].chunk(2)
        x = decoder.up_block(decoder.middle_block(decoder.conv_in(x), vectors), vectors)
        return decoder.conv_out(F.silu(decoder.norm_out(x, vectors)))


def _codec_fields(values: dict, source: Source) -> dict:
    """What shapes the codec, of those that are given."""
    lists = {"channel_multiplier": 1, "attn_resolutions": 0}
    return {
        **{name: size(values, name, source) for name in _CODEC_SIZES.split() if name in values},
        **{name: list(sizes(values, name, source, low=low)) for name, low in lists.items() if name in values},
        "double_latent": read(values, "double_latent", SWITCH, source, False),
    }


def _not_emu3_gen(checkpoint: Checkpoint) -> str:
    """What else of the family a checkpoint is, and why it is not read; "" if it is Emu3-Gen."""
    words = checkpoint.config.get("vocab_size")
    if "Emu3ForCausalLM" in str(checkpoint.config.get("architectures")):
        if isinstance(words, int) and words > _TEXT["vocab_size"]:
            return "Emu3.5, which has 34 billion weights and an image decoder that this version can't read"
        return "Emu3 in BAAI's own layout, which this version can't read"
    if "chat" in checkpoint.name.lower():  # nothing else tells them apart
        return "Emu3-Chat, which describes images and does not generate them"
    return ""


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    source, problem = checkpoint.path, _not_emu3_gen(checkpoint)
    if problem:
        remedy = f"use BAAI/Emu3-Gen-hf: run `{EMU3.command(checkpoint.home)}`"
        raise AdtError(f"{source} is {problem}; {remedy}.")
    config = decoder_config(_TEXT | section(checkpoint.config, "text_config", source), source, qk_norm=False)
    vocabulary = read_vocabulary(checkpoint, (BOS, BEGIN_IMAGE, BEGIN_CODES, END_OF_ROW), config.vocab_size)
    codec = Emu3Codec(section(checkpoint.config, "vq_config", source), source)
    codes = image_tokens(vocabulary, "<|visual token ", "|>", "Emu3")
    if len(codes) != len(codec.codebook):
        problem = f"has {len(codes)} image tokens, but its vq_config has {len(codec.codebook)} codes"
        raise AdtError(f"{source}: config.json's vocabulary_map {problem}; use the checkpoint's own config.json.")
    cells = _PIXELS // codec.downsample
    config = with_room(config, cells * (cells + 1))
    decoder = Decoder(config, torch.tensor([*codes, vocabulary[END_OF_ROW]], device="cpu"), len(codes))
    return Target(
        checkpoint.name, FAMILY.name, decoder, codec, (cells, cells), row_end=True, draws_from=config.vocab_size
    )


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Decoder and codec, under the names of transformers or of its first versions, as in the published files."""
    if any(name.startswith("text_model.") for name in checkpoint.names):
        body, head, codec = "text_model.model.", "text_model.lm_head.weight", "vqmodel."
    else:
        body, head, codec = "model.text_model.", "lm_head.weight", "model.vqmodel."
    stored = {f"{codec}{name}": tensor for name, tensor in target.codec.state_dict(keep_vars=True).items()}
    counters = {name for name in stored if name.endswith(".num_batches_tracked")}  # of training, never read
    wanted = [name for name in stored if name not in counters - checkpoint.names]
    decoder = decoder_entries(target.decoder, checkpoint, body, head)
    return decoder + [same(stored[name], name) for name in wanted]


EMU3 = Download("BAAI/Emu3-Gen-hf", 35, "Apache 2.0", "Emu3-Gen-hf")
FAMILY = Family(
    name="emu3",
    title="Emu3-Gen",
    recognises=lambda config, names: model_type(config) == "emu3",
    skeleton=skeleton,
    entries=entries,
    prompter=Emu3Prompter.of,
    sampling=PublishedSampling(
        guidance=3.0,
        top_k=2048,
        suffix=" masterpiece, film grained, best quality.",
        source="github.com/baaivision/Emu3",
    ),
    trained=(1, 1),  # shapes of as many pixels as the square
    search=("emu3",),
    published=(Published(EMU3.folder, (EMU3,), "720, or as many in another shape", (23.0, 16.5)),),
)
