"""GLM-Image's first stage: GLM-4 writes the tokens of a small picture, then those of the image.

Read as published: ``zai-org/GLM-Image`` in the layout of diffusers, of which this stage is ``vision_language_encoder``
and ``processor``. Its second stage, a diffusion transformer, makes pixels of the tokens. It is not read here. Code n is
the token n. A prompt may have source pictures, as tokens of the model's own vision encoder; then no small picture is
written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from ...errors import AdtError
from ...untrusted import number
from ..downloads import Download, Published
from ..family import Family, model_type
from ..layers import Decoder
from ..prompter import TokenPrompter, check_ids, check_length, stripped
from ..reading.checkpoint import Checkpoint, Entry, same, whole
from ..reading.fields import read, section, size, sizes
from ..reading.layout import decoder_config, decoder_entries, numbered_tokens, with_room
from ..reading.stored import numbers
from ..reading.tokenizer import encode
from ..rotary import grid_places
from ..target import EncodedPrompt, PublishedSampling, Target
from ..vq import Codec, Quantizer

BEGIN_GRID, END_GRID, BEGIN_IMAGE, END_IMAGE = "<sop>", "<eop>", "<|dit_token_16384|>", "<|dit_token_16385|>"
PIXELS = 32  # per side of a cell
_CELLS, _MOST = 32, 64  # cells per side of the usual square, and of the largest
_SMALL = 16  # cells per side of the small picture of a square
_ROOM = 16384  # positions of prompt and image together: the configuration states more than tables should have
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's, of source pictures
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
"""Values that a config.json may leave out."""
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
"""The published config.json, for a file of weights without one."""
_OWN = "model.language_model.layers.0.post_mlp_layernorm.weight", "model.vqmodel.quantize.embedding.weight"


def _recognises(config: dict, names: Collection[str]) -> bool:
    return model_type(config) == "glm_image" or not config and all(name in names for name in _OWN)


def small_grid(grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the small picture: about as many cells for every image, in nearly its shape."""
    rows, columns = grid
    return int(math.sqrt(rows / columns) * _SMALL), int(math.sqrt(columns / rows) * _SMALL)


class GlmImagePrompter(TokenPrompter):
    """Rows ``text<sop>rows columns<eop><sop>rows columns<eop><|dit_token_16384|>``, the small picture's size behind."""

    IN_TOKENIZER, FOLDER = (BEGIN_GRID, END_GRID, BEGIN_IMAGE, END_IMAGE), ("processor",)

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        return self._row(EncodedPrompt(), stripped(text), grid, small_grid(grid))

    def encode_with(self, text: str, grid: tuple[int, int], sources: Sequence[Tensor]) -> EncodedPrompt:
        """Each source is ``<|dit_token_16384|>``, its tokens, ``<|dit_token_16385|>``."""
        (begin,), (end,) = self.ids(BEGIN_IMAGE), self.ids(END_IMAGE)
        ids: list[int] = []
        places, at = [torch.zeros(0, 3, dtype=torch.long)], 0
        for codes in sources:
            lone = len(ids[-1:])  # the end of the source before it stands in line with this one's begin
            places += [torch.arange(at, at + lone + 1)[:, None].expand(-1, 3), grid_places(at + lone + 1, *codes.shape)]
            at += lone + 1 + max(codes.shape)
            ids += [begin, *codes.flatten().tolist(), end]
        row = self._row(EncodedPrompt(ids), stripped(text), grid)
        row.places = torch.cat(places)
        row.places -= at + len(row) - len(row.places)
        return row

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        if prompt.places is None:
            return self._row(EncodedPrompt(), "", grid, small_grid(grid))
        row = self._row(EncodedPrompt(prompt[: len(prompt.places) + 1]), "", grid)  # with the last source's end
        row.places = prompt.places + len(prompt) - len(row)
        return row

    def _row(self, before: EncodedPrompt, text: str, *grids: tuple[int, int]) -> EncodedPrompt:
        """A prompt that ends in the sizes of ``grids``, the image's first."""
        said = "".join(f"{BEGIN_GRID}{rows} {columns}{END_GRID}" for rows, columns in grids)
        ids = encode(self.tokenizer, text + said, self.name).ids
        check_length([*before, *ids], self.room - sum(map(math.prod, grids)) - 1, self.name)
        row = EncodedPrompt([*before, *ids, *self.ids(BEGIN_IMAGE)])
        check_ids(row, self.size, self.name)
        return row

    def check_grid(self, grid: tuple[int, int], usual: tuple[int, int]) -> str:
        if not min(grid) or not min(small_grid(grid)) or max(grid) > _MOST:
            return f"both sides must be from {PIXELS} to {_MOST * PIXELS} pixels, and not too different"
        return ""


class GlmImageCodec(Codec):
    """The codebook, and the vision encoder that finds the codes of pictures. There is no decoder: see ``_decode``.

    The encoder is transformers' ``GlmImageVisionModel``. It is 1.1 billion weights and needed for source pictures
    alone, so its layers are read one by one when a picture is encoded, and go at once.
    """

    note = "This is a preview of the tokens; GLM-Image Decode makes the image from them."

    def __init__(self, config: dict, checkpoint: Checkpoint):
        """config: what the ``config.json`` says. AdtError if its fields make no sense."""
        super().__init__()
        source, fields = checkpoint.path, section(config, "vq_config", checkpoint.path)
        codes, width = size(fields, "num_embeddings", source, 16384), size(fields, "embed_dim", source, 2048)
        vision = section(config, "vision_config", source)
        self._vision = {name: size(vision, name, source, usual) for name, usual in _VISION.items()}
        channels, heads = self._vision["hidden_size"], self._vision["num_heads"]
        if size(fields, "latent_channels", source, 1536) != channels or channels % heads:
            problem = f"vision_config has {channels} channels, which does not match its {heads} heads or the vq_config"
            raise AdtError(f"{source}: config.json's {problem}; use the checkpoint's own config.json.")
        self.quantize, self.quant_conv = Quantizer(codes, width), nn.Conv2d(channels, width, 1)
        self.downsample, self.base_channels = 2 * self._vision["patch_size"], 3
        self._checkpoint = checkpoint
        self._colours: tuple[Tensor, Tensor] | None = None

    @property
    def codebook(self) -> Tensor:
        return F.normalize(super().codebook, dim=-1)

    def _encode(self, pixels: Tensor) -> Tensor:
        from transformers import GlmImageVisionConfig  # takes seconds, and no other family needs it
        from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel

        config = GlmImageVisionConfig(**self._vision)
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            model = GlmImageVisionModel(config)
        halves = torch.cat([_halved(picture) for picture in pixels.cpu()]).to(pixels)
        return torch.cat([self.quant_conv(self._features(model, half)) for half in halves.split(1)])

    def _features(self, model: Any, pixels: Tensor) -> Tensor:
        """The encoder's last features [1, C, h, w] of a picture [1, 3, H, W], normed as CLIP's are."""
        side = model.config.patch_size
        rows, columns = pixels.shape[2] // side, pixels.shape[3] // side
        patches = (
            pixels.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).reshape(rows * columns, -1)
        )
        cells, lengths = grid_places(0, rows, columns).to(pixels.device), [rows * columns]
        with self._read(model.patch_embed, "patch_embed.", pixels), self._read(model.embeddings, "embeddings.", pixels):
            grid = torch.tensor([[1, rows, columns]], device=pixels.device)
            x = model.embeddings(model.patch_embed(patches), lengths, grid, cells[:, 1], cells[:, 2])
        ends = torch.tensor([0, rows * columns], device=pixels.device, dtype=torch.int32)
        for i, block in enumerate(model.blocks):
            with self._read(block, f"blocks.{i}.", pixels):
                x = block(x, cu_seqlens=ends)
        return x.view(1, rows, columns, -1).permute(0, 3, 1, 2)

    @contextmanager
    def _read(self, module: nn.Module, name: str, like: Tensor) -> Iterator[None]:
        """In the block ``module``, which is on the device "meta", has its weights, in ``like``'s dtype and device."""
        names = module.state_dict().keys()
        weights = {part: numbers(self._checkpoint[f"model.visual.{name}{part}"]).to(like) for part in names}
        module.load_state_dict(weights, assign=True)
        yield
        module.to("meta")

    def _decode(self, vectors: Tensor) -> Tensor:
        """A sketch: the codebook's three principal components as colours. Pixels are made by the second stage."""
        if self._colours is None:
            codebook = self.codebook
            mean = codebook.mean(0)
            centred = codebook - mean
            _, axes = torch.linalg.eigh(centred.T @ centred)
            self._colours = mean, axes[:, -3:] / (3 * (centred @ axes[:, -3:]).std(0))
        mean, axes = (part.to(vectors) for part in self._colours)
        colours = (vectors.movedim(1, -1) - mean) @ axes
        return F.interpolate(colours.movedim(-1, 1), scale_factor=self.downsample, mode="bilinear")


def _halved(picture: Tensor) -> Tensor:
    """A picture [3, H, W] in [-1, 1] at half its size, as the encoder reads it, [1, 3, H / 2, W / 2]."""
    pixels = ((picture + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    image = Image.fromarray(pixels.movedim(0, -1).numpy())
    half = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.asarray(half).copy()).float() / 255
    return ((values - torch.tensor(_MEAN)) / torch.tensor(_STD)).movedim(-1, 0)[None]


def skeleton(checkpoint: Checkpoint) -> Target:
    """An empty target of the family."""
    source, stated = checkpoint.path, checkpoint.config or _PUBLISHED
    text = _TEXT | section(stated, "text_config", source)
    rope = dict(section(text, "rope_parameters", source))
    axes = sizes(rope, "mrope_section", source, (8, 12, 12))
    share = read(rope, "partial_rotary_factor", number(0, 1), source, 1.0)
    others = {name: value for name, value in rope.items() if name not in ("mrope_section", "partial_rotary_factor")}
    plain = {name: value for name, value in text.items() if name not in ("attention_bias", "partial_rotary_factor")}
    config = decoder_config(
        plain | {"rope_parameters": others}, source, qk_norm=False, axes=axes, qkv_bias=True, norm_behind=True
    )
    if len(axes) != 3 or 2 * sum(axes) != int(config.head_dim * share):
        problem = f"mrope_section {list(axes)} does not fit head_dim {config.head_dim}"
        raise AdtError(f"{source}: config.json's {problem}; use the checkpoint's own config.json.")
    config = with_room(replace(config, max_positions=min(config.max_positions, _ROOM)), _CELLS**2 + _SMALL**2)
    codec, rows = GlmImageCodec(stated, checkpoint), size(text, "vision_vocab_size", source)
    words, codes = {"vision_vocab_size": rows, "vocab_size": config.vocab_size}, len(codec.codebook)
    fewest = min(words, key=lambda field: words[field])
    ids = numbered_tokens(words[fewest], 0, codes, source, fewest)
    decoder, usual = Decoder(config, torch.tensor(ids, device="cpu")), (_CELLS, _CELLS)
    return Target(checkpoint.name, FAMILY.name, decoder, codec, usual, lead_of=small_grid, draws_from=rows)


def entries(target: Target, checkpoint: Checkpoint) -> list[Entry]:
    """The decoder under the names of transformers' ``GlmImageForConditionalGeneration``, and what finds codes."""
    body = decoder_entries(target.decoder, checkpoint, "model.language_model.", rows=target.draws_from)
    codebook = same(target.codec.quantize.embedding.weight, "model.vqmodel.quantize.embedding.weight")
    assert isinstance(target.codec, GlmImageCodec)
    return [*body, codebook, *whole(target.codec.quant_conv, "model.vqmodel.quant_conv.")]


GLM = Download("zai-org/GLM-Image", 36, "MIT", "GLM-Image")
FAMILY = Family(
    name="glm-image",
    title="GLM-Image",
    recognises=_recognises,
    skeleton=skeleton,
    entries=entries,
    prompter=GlmImagePrompter.of,
    unneeded=("model.visual.", "model.vqmodel."),
    sampling=PublishedSampling(
        guidance=1.0, temperature=0.9, top_k=0, top_p=0.75, source="huggingface.co/zai-org/GLM-Image"
    ),
    beside=GlmImagePrompter.FOLDER,
    single_files=("glm_image*.safetensors", "GLM-Image*.safetensors"),
    trained=(1, 2),  # 1024 to 2048 pixels: 1K to 4K tokens, by its model card
    search=("glm image", "glm"),
    published=(Published(GLM.folder, (GLM,), "1024, or another shape of up to 2048", (17.7, 10.1)),),
)
