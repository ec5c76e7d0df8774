"""The VQGAN codec: pixels <-> codes.

Modules have the names of Chameleon's checkpoints (``encoder.down.0.block.0.conv1`` and so on). So the
``model.vqmodel.*`` tensors of an Anole checkpoint load as they are, with the decoder, which transformers does not have.
Architecture: Esser et al., arXiv 2012.09841, as Chameleon uses it. With attention at the coarsest level and codebook
vectors of length 1 it is VQ-16 of LlamaGen (arXiv 2406.06525) and Janus.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AdtError, Check
from ..rules.verify import Neighbours
from ..untrusted import SWITCH
from .reading.checkpoint import Entry, whole
from .reading.fields import Source, read, size, sizes

_GROUPS = 32
"""Of the norms, which take so many groups of channels."""
_MOST_CHANNELS = 2**14


def check_channels(colours: int, widths: Iterable[int], source: Source) -> None:
    """AdtError if a codec has channels in the wrong places, or can't have its norms."""
    if colours != 3:
        problem = f"has {colours} image channels, but 3 were expected"
        raise AdtError(f"{source}: config.json's vq_config {problem}; use the checkpoint's own config.json.")
    wrong = next((width for width in widths if width % _GROUPS or width > _MOST_CHANNELS), None)
    if wrong is not None:
        problem = f"has {wrong} channels, but a multiple of {_GROUPS} up to {_MOST_CHANNELS} was expected"
        raise AdtError(f"{source}: config.json's vq_config {problem}; use the checkpoint's own config.json.")


@dataclass(frozen=True)
class VQConfig:
    """Shape of the network: those fields of a Chameleon ``vq_config`` that decide it, and two for VQ-16.

    attention: an attention block follows every residual block of the coarsest level. normalised: codebook vectors are
    scaled to length 1.
    """

    embed_dim: int = 256
    num_embeddings: int = 8192
    latent_channels: int = 256
    resolution: int = 512
    in_channels: int = 3
    base_channels: int = 128
    channel_multiplier: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    attention: bool = False
    normalised: bool = False

    @classmethod
    def from_dict(cls, values: dict, source: Source) -> VQConfig:
        """From a ``vq_config``. AdtError, naming ``source``, for values that make no sense."""
        names = "embed_dim num_embeddings latent_channels resolution in_channels base_channels num_res_blocks".split()
        made = cls(
            **{name: size(values, name, source, getattr(cls, name)) for name in names},
            channel_multiplier=sizes(values, "channel_multiplier", source, cls.channel_multiplier),
            attention=read(values, "attention", SWITCH, source, cls.attention),
            normalised=read(values, "normalised", SWITCH, source, cls.normalised),
        )
        check_channels(made.in_channels, made.widths, source)
        return made

    @property
    def widths(self) -> list[int]:
        """Channels of every level, from the finest to the coarsest."""
        return [self.base_channels * multiplier for multiplier in self.channel_multiplier]

    @property
    def downsample(self) -> int:
        """Pixels per side of a cell."""
        return 2 ** (len(self.channel_multiplier) - 1)

    @property
    def cells(self) -> int:
        """Cells per side of the square image that the codec is best at."""
        return self.resolution // self.downsample


def coarsest_first(name: str, config: VQConfig) -> str:
    """A parameter's name where ``up.0`` is the coarsest level, not the finest (LlamaGen, transformers' Janus)."""
    parts = name.split(".")
    if parts[:2] == ["decoder", "up"]:
        parts[2] = str(len(config.channel_multiplier) - 1 - int(parts[2]))
    return ".".join(parts)


AUTHORS_NAMES = {
    ".down.": ".conv_blocks.",
    ".up.": ".conv_blocks.",
    ".block.": ".res.",
    "mid.block_1.": "mid.0.",
    "mid.attn_1.": "mid.1.",
    "mid.block_2.": "mid.2.",
}
"""From our names, with ``up.0`` as the coarsest level, to those of VQ-16's authors."""


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.norm1 = _norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = _norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.nin_shortcut(x)


class AttnBlock(nn.Module):
    """Self-attention with one head over all places of the map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(h.transpose(1, 2).reshape(x.shape))


def _sequence(**modules: nn.Module) -> nn.Module:
    """Modules that run one after another, under their names in the checkpoint."""
    return nn.Sequential(OrderedDict(modules))


def _middle(width: int) -> nn.Module:
    return _sequence(block_1=ResBlock(width, width), attn_1=AttnBlock(width), block_2=ResBlock(width, width))


class Level(nn.Module):
    """Residual blocks of one resolution, each followed by attention if there is any, then the change of resolution.

    Encoders replace ``downsample`` and decoders ``upsample``, except on their last level.
    """

    def __init__(self, channels: int, width: int, blocks: int, attention: bool):
        super().__init__()
        self.block = nn.ModuleList(ResBlock(channels if i == 0 else width, width) for i in range(blocks))
        self.attn = nn.ModuleList(AttnBlock(width) if attention else nn.Identity() for _ in range(blocks))
        self.downsample: nn.Module = nn.Identity()
        self.upsample: nn.Module = nn.Identity()


def _stages(levels: Iterable[Any]) -> Iterator[nn.Module]:
    """The modules of levels in the order in which they run.

    Levels have no ``forward``: whoever called it would keep its input alive, which at full resolution is large.
    """
    for level in levels:
        yield from chain(*zip(level.block, level.attn))
        yield from (level.downsample, level.upsample)


class VQEncoder(nn.Module):
    """Pixels [B, 3, H, W] -> latents [B, latent_channels, h, w]."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.conv_in = nn.Conv2d(config.in_channels, config.base_channels, 3, padding=1)
        self.down = nn.ModuleList()
        channels, last = config.base_channels, len(config.widths) - 1
        for i, width in enumerate(config.widths):
            level = Level(channels, width, config.num_res_blocks, config.attention and i == last)
            if i < last:
                level.downsample = _sequence(pad=nn.ZeroPad2d((0, 1, 0, 1)), conv=nn.Conv2d(width, width, 3, stride=2))
            self.down.append(level)
            channels = width
        self.mid = _middle(channels)
        self.norm_out, self.conv_out = _norm(channels), nn.Conv2d(channels, config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for stage in _stages(self.down):
            x = stage(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class VQDecoder(nn.Module):
    """Latents [B, latent_channels, h, w] -> pixels [B, 3, H, W]. ``up.0`` is the finest level, which runs last."""

    def __init__(self, config: VQConfig):
        super().__init__()
        channels, levels = config.widths[-1], list[Level]()
        self.conv_in = nn.Conv2d(config.latent_channels, channels, 3, padding=1)
        self.mid = _middle(channels)
        for i, width in reversed(list(enumerate(config.widths))):
            level = Level(channels, width, config.num_res_blocks + 1, config.attention and not levels)
            if i > 0:
                conv = nn.Conv2d(width, width, 3, padding=1)
                level.upsample = _sequence(nearest=nn.Upsample(scale_factor=2.0), conv=conv)
            levels.append(level)
            channels = width
        self.up = nn.ModuleList(reversed(levels))
        self.norm_out, self.conv_out = _norm(channels), nn.Conv2d(channels, config.in_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for stage in _stages(reversed(self.up)):
            x = stage(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Quantizer(nn.Module):
    def __init__(self, num_codes: int, width: int):
        super().__init__()
        # What nn.Embedding itself would draw; its own way imports torch._dynamo for a codec on the device "meta": 2 s.
        self.embedding = nn.Embedding.from_pretrained(torch.randn(num_codes, width), freeze=False)


_ROWS = 1024  # of the distance matrix at a time


@contextmanager
def _watched(module: nn.Module, check: Check | None) -> Iterator[None]:
    """Meanwhile ``check``, if there is one, is called before every layer of ``module``; it may raise to cancel."""
    layers = [] if check is None else list(module.modules())
    handles = [layer.register_forward_pre_hook(lambda *_, check=check: check()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _finite(values: Tensor) -> Tensor:
    """Return the values as they are if all of them are finite numbers; else raise an AdtError."""
    if not values.isfinite().all():
        raise AdtError(
            "image: the codec, which turns tokens into pixels, returned infinite or NaN values; "
            "download the model's codec again."
        )
    return values


class Codec(nn.Module):
    """An image tokenizer: a codebook, ``encode`` and ``decode``. Works in float32, whatever the transformer's dtype is.

    A subclass sets ``quantize``, ``downsample`` (pixels per side of a cell) and ``base_channels`` (of maps at full
    resolution), and has ``_encode`` and ``_decode``.
    """

    quantize: Quantizer
    downsample: int
    base_channels: int
    note = ""
    """A sentence for who looks at what it decodes, or ""."""

    def __init__(self):
        super().__init__()
        self._nearest: Neighbours | None = None

    @property
    def codebook(self) -> Tensor:
        """[num_codes, C] codebook vectors, as they are decoded."""
        return self.quantize.embedding.weight

    def neighbours(self, k: int) -> Neighbours:
        """The ``k`` nearest neighbours of every code, computed once; on the CPU, so that the GPU can be emptied."""
        if self._nearest is None or self._nearest.indices.shape[1] != min(k, len(self.codebook) - 1):
            self._nearest = Neighbours.of(self.codebook, k).to(torch.device("cpu"))
        return self._nearest

    def working_bytes(self, pixels: int) -> int:
        """Memory for decoding or encoding ``pixels`` pixels: eight float32 maps at full resolution."""
        return pixels * self.base_channels * 8 * 4

    def lookup(self, codes: Tensor) -> Tensor:
        """codes [B, h, w] int64 -> codebook vectors [B, C, h, w]."""
        return F.embedding(codes.to(self.codebook.device), self.codebook).permute(0, 3, 1, 2).contiguous()

    def nearest(self, vectors: Tensor) -> Tensor:
        """vectors [B, C, h, w] -> nearest codes [B, h, w] int64 (Euclidean, ties to the lower code)."""
        codebook = self.codebook
        flat, squares = vectors.to(codebook).permute(0, 2, 3, 1), codebook.pow(2).sum(1)
        nearest = [(squares - 2 * rows @ codebook.T).argmin(-1) for rows in flat.flatten(0, 2).split(_ROWS)]
        return torch.cat(nearest).view(flat.shape[:3])

    def encode(self, pixels: Tensor, check: Check | None = None) -> Tensor:
        """Return the codes of images.

        Args:
            pixels: [B, 3, H, W] in [-1, 1]; sides are multiples of ``downsample``.
            check: Called often; may raise.
        Returns:
            Codes [B, h, w] int64.
        Raises:
            AdtError: If the codec's numbers are infinite or NaN.
        """
        with _watched(self, check):
            return self.nearest(_finite(self._encode(pixels.to(self.codebook))))

    def decode(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """Return the images of codes.

        Args:
            codes: [B, h, w] int64.
            check: Called often; may raise.
        Returns:
            Pixels [B, 3, H, W] in [-1, 1].
        Raises:
            AdtError: If the codec's numbers are infinite or NaN.
        """
        with _watched(self, check):
            return _finite(self._decode(self.lookup(codes))).clamp(-1, 1)

    def _encode(self, pixels: Tensor) -> Tensor:
        """pixels [B, 3, H, W] -> vectors [B, C, h, w], not yet quantised."""
        raise NotImplementedError

    def _decode(self, vectors: Tensor) -> Tensor:
        """Codebook vectors [B, C, h, w] -> pixels [B, 3, H, W], not yet clamped."""
        raise NotImplementedError


class VQModel(Codec):
    """Encoder, codebook and decoder of a VQGAN."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.downsample, self.base_channels = config.downsample, config.base_channels
        self.encoder, self.decoder = VQEncoder(config), VQDecoder(config)
        self.quantize = Quantizer(config.num_embeddings, config.embed_dim)
        self.quant_conv = nn.Conv2d(config.latent_channels, config.embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)

    @property
    def codebook(self) -> Tensor:
        weight = super().codebook
        return F.normalize(weight, dim=-1) if self.config.normalised else weight

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.quant_conv(self.encoder(pixels))

    def _decode(self, vectors: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(vectors))

    def entries(self, prefix: str) -> list[Entry]:
        """Where its parameters come from if ``up.0`` is the coarsest level (LlamaGen, transformers' Janus)."""
        return whole(self, prefix, lambda name: coarsest_first(name, self.config))
