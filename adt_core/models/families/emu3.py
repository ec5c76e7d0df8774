"""Emu3-Gen: a LLaMA decoder over text and image tokens, with an end token after every row and a video codec.

Wang et al., arXiv 2409.18869. Layout: as in transformers, for example ``BAAI/Emu3-Gen-hf``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdtError, naming_missing_libraries
from ...messages import message
from ...untrusted import SWITCH
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter
from ..reading.checkpoint import Checkpoint
from ..reading.codec import check_channels
from ..reading.entries import Entry, copy_entry
from ..reading.fields import ConfigSource, read, section, size, sizes
from ..reading.layout import decoder_config, decoder_entries, image_tokens, read_vocabulary, with_min_positions
from ..repositories import Download, Published
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import Codec, Quantizer

BOS = "<|extra_203|>"
BEGIN_IMAGE = "<|image start|>"
BEGIN_CODES = "<|image token|>"
END_OF_ROW = "<|extra_200|>"
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
"""Negative prompt of the authors' example. It is the default negative prompt."""
_PIXELS = 720  # side of an image of the default size; images of other shapes have at most as many pixels
# Defaults of ``text_config`` fields that a config.json may omit.
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
"""Names of the integer fields of a ``vq_config`` that define the codec's shape. :func:`_codec_fields` adds two lists
and a flag. Other fields are ignored."""


class Emu3Prompter(TokenPrompter):
    """Prompter with rows ``<|extra_203|> text <|image start|> rows*columns <|image token|>``.

    Unconditional rows have :data:`NEGATIVE` as text.
    """

    BOS = BOS
    IN_TOKENIZER = (BOS, BEGIN_IMAGE, BEGIN_CODES)

    def format_text(self, text: str, grid: tuple[int, int]) -> str:
        return f"{text}{BEGIN_IMAGE}{grid[0]}*{grid[1]}{BEGIN_CODES}"

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return self.encode(NEGATIVE, grid)

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        """Check whether an image has at most as many codes as an image of the default size.

        The check tolerates half a code per side, because the sides of a requested shape are rounded to integers.
        """
        rows, columns = grid
        if not min(grid):
            return message("limit.one_token")
        if (rows - 0.5) * (columns - 0.5) <= usual[0] * usual[1]:
            return ""
        return message("limit.tokens", rows=rows, columns=columns, most_rows=usual[0], most_columns=usual[1])


class Emu3Codec(Codec):
    """Codec for single images, built from the modules of ``Emu3VQVAE`` in transformers.

    ``Emu3VQVAE`` is a video codec that encodes 4 frames together. For a single image, all frames are equal. Layers that
    process each frame separately therefore run on one frame only.
    """

    def __init__(self, values: dict, source: ConfigSource):
        """Build the codec without weights, or raise an AdtError if a field of the ``vq_config`` is unsupported."""
        with naming_missing_libraries():
            from transformers import Emu3VQVAE, Emu3VQVAEConfig  # takes seconds, and only this family needs it

        super().__init__()
        config = Emu3VQVAEConfig(**_codec_fields(values, source))
        widths = [config.base_channels * multiplier for multiplier in config.channel_multiplier]
        for image_channels in (config.in_channels, config.out_channels):
            check_channels(image_channels, widths, source)
        if config.hidden_size % config.num_attention_heads:
            raise AdtError("emu3.heads", source=source, hidden_size=config.hidden_size)
        model = Emu3VQVAE(config)
        self.encoder = model.encoder
        self.decoder = model.decoder
        self.quantize = Quantizer(config.codebook_size, config.embed_dim)
        self.quant_conv = model.quant_conv
        self.post_quant_conv = model.post_quant_conv
        self.frames = config.temporal_downsample_factor
        self.downsample = 2 ** (len(config.channel_multiplier) - 1)
        self.base_channels = config.base_channels

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
        decoder = self.decoder
        vectors = vectors[:, :, None]
        both = torch.cat([self.post_quant_conv(vectors), vectors])
        for block in decoder.time_res_stack:
            both = block(both)
        for conv in decoder.time_conv:
            both = F.silu(conv(both))
        x, vectors = both[:, :, 0].chunk(2)
        x = decoder.up_block(decoder.middle_block(decoder.conv_in(x), vectors), vectors)
        return decoder.conv_out(F.silu(decoder.norm_out(x, vectors)))


def _codec_fields(values: dict, source: ConfigSource) -> dict:
    """Check the fields of a ``vq_config`` that define the codec's shape, and return these fields."""
    lists = {"channel_multiplier": 1, "attn_resolutions": 0}
    return {
        **{name: size(values, name, source) for name in _CODEC_SIZES.split() if name in values},
        **{name: list(sizes(values, name, source, low=low)) for name, low in lists.items() if name in values},
        "double_latent": read(values, "double_latent", SWITCH, source, False),
    }


def _not_emu3_gen(checkpoint: Checkpoint) -> str:
    """Return "" for Emu3-Gen, and the key of an error for other models of the series."""
    vocab_size = checkpoint.config.get("vocab_size")
    if "Emu3ForCausalLM" in str(checkpoint.config.get("architectures")):
        if isinstance(vocab_size, int) and vocab_size > _TEXT["vocab_size"]:
            return "emu3.version_3_5"
        return "emu3.other_layout"
    if "chat" in checkpoint.name.lower():  # only the name distinguishes it from Emu3-Gen
        return "emu3.chat"
    return ""


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for an Emu3-Gen checkpoint."""
    source = checkpoint.path
    problem = _not_emu3_gen(checkpoint)
    if problem:
        raise AdtError(problem, source=source, command=EMU3.command(checkpoint.home))
    config = decoder_config(_TEXT | section(checkpoint.config, "text_config", source), source, qk_norm=False)
    vocabulary = read_vocabulary(checkpoint, (BOS, BEGIN_IMAGE, BEGIN_CODES, END_OF_ROW), config.vocab_size)
    codec = Emu3Codec(section(checkpoint.config, "vq_config", source), source)
    codes = image_tokens(vocabulary, "<|visual token ", "|>", "Emu3")
    if len(codes) != len(codec.codebook):
        raise AdtError("emu3.other_codes", source=source, count=len(codes), codes=len(codec.codebook))
    cells = _PIXELS // codec.downsample
    config = with_min_positions(config, cells * (cells + 1))
    decoder = Decoder(config, torch.tensor([*codes, vocabulary[END_OF_ROW]], device="cpu"), len(codes))
    return Target(
        checkpoint.name, FAMILY.name, decoder, codec, (cells, cells), row_end=True, script_vocab_size=config.vocab_size
    )


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of decoder and codec, with the tensor names of transformers.

    The first versions of transformers with Emu3 used other prefixes. Both kinds of prefixes are supported.
    """
    is_first = any(name.startswith("text_model.") for name in checkpoint.names)
    body = "text_model.model." if is_first else "model.text_model."
    head = "text_model.lm_head.weight" if is_first else "lm_head.weight"
    codec = "vqmodel." if is_first else "model.vqmodel."
    stored = {f"{codec}{name}": tensor for name, tensor in target.codec.state_dict(keep_vars=True).items()}
    counters = {name for name in stored if name.endswith(".num_batches_tracked")}  # only used in training
    wanted = [name for name in stored if name not in counters - checkpoint.names]
    decoder = decoder_entries(target.decoder, checkpoint, body, head)
    return decoder + [copy_entry(stored[name], name) for name in wanted]


EMU3 = Download("BAAI/Emu3-Gen-hf", 35, "Apache 2.0", "Emu3-Gen-hf")
FAMILY = Family(
    name="emu3",
    title="Emu3-Gen",
    recognises=lambda config, names: model_type(config) == "emu3",
    skeleton=skeleton,
    entries=entries,
    prompter=Emu3Prompter.of,
    sampling=PublishedSampling(
        guidance_scale=3.0,
        top_k=2048,
        suffix=" masterpiece, film grained, best quality.",
        source="github.com/baaivision/Emu3",
    ),
    trained=(1, 1),  # only sizes with as many pixels as the default square were trained
    search=("emu3",),
    published=(Published(EMU3.folder, (EMU3,), "720, or as many in another shape", (23.0, 16.5, 13.8)),),
)
