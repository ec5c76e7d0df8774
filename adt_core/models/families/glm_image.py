"""First stage of GLM-Image: GLM-4 generates the tokens of a small version of the image, then those of the image.

The second stage, a diffusion transformer that converts tokens to pixels, is in :mod:`..glm_pixels`. Layout:
``zai-org/GLM-Image`` as published for diffusers. This stage uses its folders ``vision_language_encoder`` and
``processor``. The token id of code n is n.

A prompt may contain source images, which the model's vision encoder converts to codes. With source images, the model
does not generate the small image.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from ...errors import AdtError, naming_missing_libraries
from ...messages import message
from ...untrusted import number
from ..config import DecoderConfig
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter, check_ids, check_length, stripped
from ..reading.checkpoint import Checkpoint
from ..reading.entries import Entry, copy_entry, module_entries
from ..reading.fields import read, section, size, sizes
from ..reading.layout import consecutive_ids, decoder_config, decoder_entries, with_min_positions
from ..reading.paths import STAGE
from ..reading.tokenizer import encode
from ..repositories import Download, Published
from ..rotary import grid_positions
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import Codec, PointConv, Quantizer

BEGIN_GRID = "<sop>"
END_GRID = "<eop>"
BEGIN_IMAGE = "<|dit_token_16384|>"
END_IMAGE = "<|dit_token_16385|>"
PIXELS = 32  # a code represents 32 x 32 pixels
_DEFAULT_SIDE = 32  # codes per side of an image of the default size
_MAX_SIDE = 64  # largest number of codes per side
_SMALL_SIDE = 16  # codes per side of the small image, if the image is a square
_MAX_POSITIONS = 16384  # for prompt and image together; tables for the published 131,072 positions would be large
# CLIP's normalisation of red, green and blue, for source images.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
_TEXT = {
    "vocab_size": 168064,
    "vision_vocab_size": 16512,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
}
"""Defaults of ``text_config`` fields that a config.json may omit."""
_VISION = {
    "depth": 40,
    "hidden_size": 1536,
    "num_heads": 16,
    "image_size": 2048,
    "patch_size": 16,
    "intermediate_size": 6144,
}
_ROPE = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
_PUBLISHED: dict[str, dict] = {"text_config": {"rope_parameters": _ROPE}, "vq_config": {}, "vision_config": {}}
"""Published config.json, used for a weights file without a config.json. Other fields have the defaults above."""
_TYPICAL_TENSORS = (
    "model.language_model.layers.0.post_mlp_layernorm.weight",
    "model.vqmodel.quantize.embedding.weight",
)


def _recognises(config: dict, names: Collection[str]) -> bool:
    return model_type(config) == "glm_image" or not config and all(name in names for name in _TYPICAL_TENSORS)


def small_grid(grid: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the small image. It has about 256 codes and nearly the aspect ratio of the image."""
    rows, columns = grid
    return int(math.sqrt(rows / columns) * _SMALL_SIDE), int(math.sqrt(columns / rows) * _SMALL_SIDE)


class GlmImagePrompter(TokenPrompter):
    """Prompter with rows ``text<sop>rows columns<eop><sop>rows columns<eop><|dit_token_16384|>``.

    The first pair of rows and columns is the size of the image, the second pair the size of the small image.
    """

    IN_TOKENIZER = (BEGIN_GRID, END_GRID, BEGIN_IMAGE, END_IMAGE)
    FOLDER = ("processor",)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        return self._row(EncodedPrompt(), stripped(text), grid, small_grid(grid))

    def encode_with(self, text: str, grid: tuple[int, int], sources: Sequence[Tensor]) -> EncodedPrompt:
        """Return the row of a text and source images.

        In the row, each source image consists of ``<|dit_token_16384|>``, its codes and ``<|dit_token_16385|>``, and
        the text follows the source images. For M-RoPE, the codes of a source image form a grid. On all three axes, the
        next token's position is the position of the grid's first code plus the longer side. For example, after a grid
        of 2 x 3 codes at position 1, the next token has position 4.
        """
        (begin,) = self.ids(BEGIN_IMAGE)
        (end,) = self.ids(END_IMAGE)
        ids: list[int] = []
        positions = [torch.zeros(0, 3, dtype=torch.long)]
        at = 0
        for codes in sources:
            markers = len(ids[-1:]) + 1  # end token of the previous source image, if any, and begin token
            positions.append(torch.arange(at, at + markers)[:, None].expand(-1, 3))
            positions.append(grid_positions(at + markers, *codes.shape))
            at += markers + max(codes.shape)
            ids += [begin, *codes.flatten().tolist(), end]
        row = self._row(EncodedPrompt(ids), stripped(text), grid)
        absolute = torch.cat(positions)
        row.mrope_positions = absolute - (at + len(row) - len(absolute))  # relative to the image's first token
        return row

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        if prompt.mrope_positions is None:
            return self._row(EncodedPrompt(), "", grid, small_grid(grid))
        sources = len(prompt.mrope_positions) + 1  # plus the end token of the last source image
        row = self._row(EncodedPrompt(prompt[:sources]), "", grid)
        row.mrope_positions = prompt.mrope_positions + len(prompt) - len(row)
        return row

    def _row(self, before: EncodedPrompt, text: str, *grids: tuple[int, int]) -> EncodedPrompt:
        """Return a prompt row: the tokens ``before``, the text, then the sizes ``grids``, of the image first."""
        sizes = "".join(f"{BEGIN_GRID}{rows} {columns}{END_GRID}" for rows, columns in grids)
        ids = encode(self.tokenizer, text + sizes, self.name).ids
        check_length([*before, *ids], self.max_positions - sum(map(math.prod, grids)) - 1, self.name)
        row = EncodedPrompt([*before, *ids, *self.ids(BEGIN_IMAGE)])
        check_ids(row, self.vocab_size, self.name)
        return row

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        if not min(grid) or not min(small_grid(grid)) or max(grid) > _MAX_SIDE:
            return message("limit.range", low=PIXELS, high=_MAX_SIDE * PIXELS)
        return ""


class GlmImageCodec(Codec):
    """Codec with a vision encoder for source images and a codebook. Instead of decoding, it computes a preview.

    The encoder is ``GlmImageVisionModel`` of transformers. It has 1.1 billion weights, and only source images need it.
    To save memory, the codec reads the encoder's layers from the checkpoint one by one while it encodes an image, and
    releases each layer after use.
    """

    note = message("model.preview")

    def __init__(self, config: dict, checkpoint: Checkpoint):
        """Build the codec without weights, or raise an AdtError if a field of the ``config.json`` is unsupported."""
        super().__init__()
        source = checkpoint.path
        fields = section(config, "vq_config", source)
        codes = size(fields, "num_embeddings", source, 16384)
        width = size(fields, "embed_dim", source, 2048)
        vision = section(config, "vision_config", source)
        self._vision = {name: size(vision, name, source, default) for name, default in _VISION.items()}
        channels = self._vision["hidden_size"]
        heads = self._vision["num_heads"]
        if size(fields, "latent_channels", source, 1536) != channels or channels % heads:
            raise AdtError("glm_image.vision_channels", source=source, channels=channels, heads=heads)
        self.quantize = Quantizer(codes, width)
        self.quant_conv = PointConv(channels, width)
        self.downsample = 2 * self._vision["patch_size"]
        self.base_channels = 3
        self._checkpoint = checkpoint
        self._colours: tuple[Tensor, Tensor] | None = None

    @property
    def codebook(self) -> Tensor:
        return F.normalize(super().codebook, dim=-1)

    def _encode(self, pixels: Tensor) -> Tensor:
        with naming_missing_libraries():
            from transformers import GlmImageVisionConfig  # takes seconds, and no other family needs it
            from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel

        config = GlmImageVisionConfig(**self._vision)
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            model = GlmImageVisionModel(config)
        halves = torch.cat([_half_size(image) for image in pixels.cpu()]).to(pixels)
        return torch.cat([self.quant_conv(self._features(model, half)) for half in halves.split(1)])

    def _features(self, model: Any, pixels: Tensor) -> Tensor:
        """Return the output [1, C, h, w] of the vision encoder: C channels, and one position for each code.

        Args:
            pixels: [1, 3, H, W] image at half its size, normalised as for CLIP.
        """
        side = model.config.patch_size
        rows, columns = (pixels_per_side // side for pixels_per_side in pixels.shape[2:])
        patches = (
            pixels.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).reshape(rows * columns, -1)
        )
        cells = grid_positions(0, rows, columns).to(pixels.device)
        lengths = [rows * columns]
        embed = model.patch_embed
        embeddings = model.embeddings
        with self._loaded(embed, "patch_embed.", pixels), self._loaded(embeddings, "embeddings.", pixels):
            grid = torch.tensor([[1, rows, columns]], device=pixels.device)
            x = embeddings(embed(patches), lengths, grid, cells[:, 1], cells[:, 2])
        ends = torch.tensor([0, rows * columns], device=pixels.device, dtype=torch.int32)
        for i, block in enumerate(model.blocks):
            with self._loaded(block, f"blocks.{i}.", pixels):
                x = block(x, cu_seqlens=ends)
        return x.view(1, rows, columns, -1).permute(0, 3, 1, 2)

    @contextmanager
    def _loaded(self, module: nn.Module, name: str, like: Tensor) -> Iterator[None]:
        """Load the weights of a module, like a tensor in dtype and device, and move it to "meta" after the block."""
        names = module.state_dict().keys()
        weights = {part: self._checkpoint[f"model.visual.{name}{part}"].read_finite().to(like) for part in names}
        module.load_state_dict(weights, assign=True)
        yield
        module.to("meta")

    def _decode(self, vectors: Tensor) -> Tensor:
        """Return a preview of the image, because only the second stage can decode it.

        The preview shows the three principal components of the codebook vectors as red, green and blue.
        """
        if self._colours is None:
            codebook = self.codebook
            mean = codebook.mean(0)
            centred = codebook - mean
            _, components = torch.linalg.eigh(centred.T @ centred)  # in ascending order of variance
            largest = components[:, -3:]
            # -3 to 3 standard deviations become -1 to 1
            self._colours = mean, largest / (3 * (centred @ largest).std(0))
        mean, axes = (part.to(vectors) for part in self._colours)
        colours = (vectors.movedim(1, -1) - mean) @ axes
        return F.interpolate(colours.movedim(-1, 1), scale_factor=self.downsample, mode="bilinear")


def _half_size(picture: Tensor) -> Tensor:
    """Halve the size of an image [3, H, W] in [-1, 1] and normalise it as for CLIP: [1, 3, H / 2, W / 2]."""
    pixels = ((picture + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    image = Image.fromarray(pixels.movedim(0, -1).numpy())
    half = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.asarray(half).copy()).float() / 255
    return ((values - torch.tensor(_MEAN)) / torch.tensor(_STD)).movedim(-1, 0)[None]


def skeleton(checkpoint: Checkpoint) -> Target:
    """Return an empty target for a GLM-Image checkpoint."""
    source = checkpoint.path
    fields = checkpoint.config or _PUBLISHED
    config = _decoder_config(fields, source)
    codec = GlmImageCodec(fields, checkpoint)
    head_rows = size(_TEXT | section(fields, "text_config", source), "vision_vocab_size", source)
    vocabularies = {"vision_vocab_size": head_rows, "vocab_size": config.vocab_size}
    smaller = min(vocabularies, key=lambda field: vocabularies[field])
    ids = consecutive_ids(vocabularies[smaller], 0, len(codec.codebook), source, smaller)
    decoder = Decoder(config, torch.tensor(ids, device="cpu"))
    grid = (_DEFAULT_SIDE, _DEFAULT_SIDE)
    return Target(checkpoint.name, FAMILY.name, decoder, codec, grid, lead_of=small_grid, script_vocab_size=head_rows)


def _decoder_config(fields: dict, source: Path) -> DecoderConfig:
    """Return the decoder's shape from the fields of a config.json. ``source`` is its checkpoint, for error messages."""
    text = _TEXT | section(fields, "text_config", source)
    rope = dict(section(text, "rope_parameters", source))
    mrope_section = sizes(rope, "mrope_section", source, (8, 12, 12))
    rotated_share = read(rope, "partial_rotary_factor", number(0, 1), source, 1.0)
    others = {name: value for name, value in rope.items() if name not in ("mrope_section", "partial_rotary_factor")}
    plain = {name: value for name, value in text.items() if name not in ("attention_bias", "partial_rotary_factor")}
    plain["rope_parameters"] = others
    config = decoder_config(plain, source, qk_norm=False, mrope_section=mrope_section, qkv_bias=True, post_norms=True)
    if len(mrope_section) != 3 or 2 * sum(mrope_section) != int(config.head_dim * rotated_share):
        raise AdtError("glm_image.sections", source=source, mrope_section=list(mrope_section), head_dim=config.head_dim)
    config = replace(config, max_positions=min(config.max_positions, _MAX_POSITIONS))
    return with_min_positions(config, _DEFAULT_SIDE**2 + _SMALL_SIDE**2)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """Return the entries of decoder, codebook and the projection to codebook vectors, in transformers' layout."""
    body = decoder_entries(target.decoder, checkpoint, "model.language_model.", rows=target.script_vocab_size)
    codebook = copy_entry(target.codec.quantize.embedding.weight, "model.vqmodel.quantize.embedding.weight")
    assert isinstance(target.codec, GlmImageCodec)
    return [*body, codebook, *module_entries(target.codec.quant_conv, "model.vqmodel.quant_conv.")]


GLM = Download(
    "zai-org/GLM-Image",
    36,
    "MIT",
    "GLM-Image",
    commit="2c433cc0cbc293bde2ac8ca9624f279b5d23fcf4",
    weights=(STAGE, "transformer", "text_encoder", "vae"),
)
FAMILY = Family(
    name="glm-image",
    title="GLM-Image",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=GlmImagePrompter.of,
    unneeded=("model.visual.", "model.vqmodel."),
    sampling=PublishedSampling(
        guidance_scale=1.0, temperature=0.9, top_k=0, top_p=0.75, source="huggingface.co/zai-org/GLM-Image"
    ),
    companions=GlmImagePrompter.FOLDER,
    single_files=("glm_image*.safetensors", "GLM-Image*.safetensors"),
    trained=(1, 2),  # 1024 to 2048 pixels, according to its model card
    search=("glm image", "glm"),
    published=(Published(GLM.folder, (GLM,), "1024, or another shape of up to 2048", (17.7, 10.1, 6.9)),),
)
