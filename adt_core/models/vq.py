"""VQGAN codec, which converts pixels to codes and back (Esser et al., arXiv 2012.09841).

A code is the index of a vector in the codebook. One code represents a square of pixels. The default configuration is
Chameleon's codec. With attention at the coarsest level and codebook vectors of length 1, the codec is VQ-16, which
LlamaGen (arXiv 2406.06525) and Janus use. Modules have the same names as in Chameleon's checkpoints, such as
``encoder.down.0.block.0.conv1``. The ``model.vqmodel.*`` tensors of an Anole checkpoint therefore load directly. These
tensors include the codec's decoder, which transformers does not implement.

In shapes, B is the number of images, H x W their size in pixels, h x w their size in codes, and C the width of a
codebook vector. Levels are the resolutions of encoder and decoder; the finest level has H x W positions.
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
from .torch_private import attention
from .torch_state import own_torch_state

NORM_GROUPS = 32  # of every group norm


@dataclass(frozen=True)
class VQConfig:
    """Shape of a VQGAN.

    Attributes:
        embed_dim: Width of the codebook vectors.
        num_embeddings: Number of codebook vectors.
        latent_channels: Number of channels of the encoder's output.
        resolution: Side of the square training images in pixels.
        in_channels: Number of channels of an image.
        base_channels: Number of channels of the first convolution, at full resolution.
        channel_multiplier: Number of channels of each level, divided by ``base_channels``, from the finest level to the
            coarsest.
        num_res_blocks: Number of residual blocks of each level of the encoder. Levels of the decoder have one more.
        attention: Whether an attention block follows every residual block of the coarsest level (VQ-16).
        normalised: Whether codebook vectors are scaled to length 1 (VQ-16).
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

    @property
    def widths(self) -> list[int]:
        """Number of channels of every level, from the finest to the coarsest."""
        return [self.base_channels * multiplier for multiplier in self.channel_multiplier]

    @property
    def downsample(self) -> int:
        """Side of the square of pixels that one code represents, in pixels."""
        return 2 ** (len(self.channel_multiplier) - 1)

    @property
    def cells(self) -> int:
        """Number of codes per side of a square image of the training resolution."""
        return self.resolution // self.downsample


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(NORM_GROUPS, channels, eps=1e-6)


class PointConv(nn.Conv2d):
    """Convolution of single positions whose bits do not depend on the number of CPU threads.

    For a kernel of one position, oneDNN may divide the sum over channels among threads, so the order of the additions
    depends on their number. It does not divide the sums of larger kernels. On CPUs, two weights of zero therefore
    enclose each weight.
    """

    def __init__(self, channels: int, out_channels: int):
        super().__init__(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x)
        return F.conv2d(x, F.pad(self.weight, (1, 1)), self.bias, padding=(0, 1))


class ResBlock(nn.Module):
    """Two convolutions with group norms, and a residual connection."""

    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.norm1 = _norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = _norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.nin_shortcut = PointConv(channels, out_channels) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.nin_shortcut(x)


class AttnBlock(nn.Module):
    """Self-attention with one head over all positions of the feature map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (PointConv(channels, channels) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = attention(q, k, v)
        return x + self.proj_out(h.transpose(1, 2).reshape(x.shape))


def _sequence(**modules: nn.Module) -> nn.Module:
    """Return a sequence of modules. The names of the arguments are the modules' names in the checkpoint."""
    return nn.Sequential(OrderedDict(modules))


def _middle(width: int) -> nn.Module:
    return _sequence(block_1=ResBlock(width, width), attn_1=AttnBlock(width), block_2=ResBlock(width, width))


class Level(nn.Module):
    """Residual blocks of one resolution, each followed by optional attention, then a change of resolution.

    The encoder replaces ``downsample`` and the decoder replaces ``upsample``. The last level that runs keeps
    ``nn.Identity`` for both.
    """

    def __init__(self, channels: int, width: int, blocks: int, attention: bool):
        super().__init__()
        self.block = nn.ModuleList(ResBlock(channels if i == 0 else width, width) for i in range(blocks))
        self.attn = nn.ModuleList(AttnBlock(width) if attention else nn.Identity() for _ in range(blocks))
        self.downsample: nn.Module = nn.Identity()
        self.upsample: nn.Module = nn.Identity()


def _stages(levels: Iterable[Any]) -> Iterator[nn.Module]:
    """Yield the modules of all levels in the order in which they run.

    A loop over these modules can free the input of each module as soon as the module has run. ``Level`` has no
    ``forward``, because its caller would keep the level's input in memory until all modules of the level have run. The
    input is large at full resolution.
    """
    for level in levels:
        yield from chain(*zip(level.block, level.attn))
        yield from (level.downsample, level.upsample)


class VQEncoder(nn.Module):
    """Encoder of pixels [B, 3, H, W] to latents [B, latent_channels, h, w]."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.conv_in = nn.Conv2d(config.in_channels, config.base_channels, 3, padding=1)
        self.down = nn.ModuleList()
        channels = config.base_channels
        last = len(config.widths) - 1
        for i, width in enumerate(config.widths):
            level = Level(channels, width, config.num_res_blocks, config.attention and i == last)
            if i < last:
                level.downsample = _sequence(pad=nn.ZeroPad2d((0, 1, 0, 1)), conv=nn.Conv2d(width, width, 3, stride=2))
            self.down.append(level)
            channels = width
        self.mid = _middle(channels)
        self.norm_out = _norm(channels)
        self.conv_out = nn.Conv2d(channels, config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for stage in _stages(self.down):
            x = stage(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class VQDecoder(nn.Module):
    """Decoder of latents [B, latent_channels, h, w] to pixels [B, 3, H, W].

    ``up.0`` is the finest level, which runs last.
    """

    def __init__(self, config: VQConfig):
        super().__init__()
        channels = config.widths[-1]
        levels: list[Level] = []
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
        self.norm_out = _norm(channels)
        self.conv_out = nn.Conv2d(channels, config.in_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for stage in _stages(reversed(self.up)):
            x = stage(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Quantizer(nn.Module):
    """Codebook: one vector for each code."""

    def __init__(self, num_codes: int, width: int):
        super().__init__()
        # The same initial values as nn.Embedding(num_codes, width). On the meta device, that constructor would import
        # torch._dynamo, which takes 2 s.
        self.embedding = nn.Embedding.from_pretrained(torch.randn(num_codes, width), freeze=False)


_DISTANCE_ROWS = 1024  # number of vectors whose distances to all codes are computed at a time


@contextmanager
def cancellable(check: Check | None, *modules: nn.Module) -> Iterator[None]:
    """Call ``check`` before each layer of the modules that runs in this block. It may raise an exception to cancel."""
    layers = [layer for module in modules for layer in module.modules() if not any(layer.children())]
    hooks = [layer.register_forward_pre_hook(lambda *_: check()) for layer in layers] if check is not None else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _finite(values: Tensor) -> Tensor:
    """Return the values, or raise an AdtError if one of them is infinite or NaN."""
    if not values.isfinite().all():
        raise AdtError("codec.not_finite")
    return values


def check_finite(values: Tensor, name: str) -> None:
    """Raise an AdtError if a value that a user has given is infinite or NaN. ``name`` is the name of the input."""
    wrong = int(values.numel() - values.isfinite().sum())
    if wrong:
        raise AdtError("values.not_finite", input=name, wrong=wrong, count=values.numel())


class Codec(nn.Module):
    """Image tokenizer. It always computes in float32, whatever the dtype of the transformer.

    Subclasses set the attributes and implement ``_encode`` and ``_decode``.

    Attributes:
        downsample: Side of the square of pixels that one code represents, in pixels.
        base_channels: Number of channels of feature maps at full resolution, for estimates of memory.
        note: Message to show with decoded images; "" if there is none.
    """

    quantize: Quantizer
    downsample: int
    base_channels: int
    note = ""

    def __init__(self):
        super().__init__()
        self._nearest: Neighbours | None = None

    @property
    def codebook(self) -> Tensor:
        """Codebook vectors [num_codes, C] in the form that the decoder reads."""
        return self.quantize.embedding.weight

    def neighbours(self, k: int) -> Neighbours:
        """Return the ``k`` nearest neighbours of every code, on the CPU. The result is cached."""
        if self._nearest is None or self._nearest.indices.shape[1] != min(k, len(self.codebook) - 1):
            self._nearest = Neighbours.of(self.codebook, k).to(torch.device("cpu"))
        return self._nearest

    def working_bytes(self, pixels: int) -> int:
        """Estimate the bytes for encoding or decoding ``pixels``: eight float32 feature maps at full resolution."""
        return pixels * self.base_channels * 8 * 4

    def lookup(self, codes: Tensor) -> Tensor:
        """Return the codebook vectors [B, C, h, w] of int64 codes [B, h, w]."""
        return F.embedding(codes.to(self.codebook.device), self.codebook).permute(0, 3, 1, 2).contiguous()

    @own_torch_state()
    def nearest(self, vectors: Tensor) -> Tensor:
        """Return the code [B, h, w] int64 of the codebook vector with the smallest Euclidean distance to each vector.

        If two codes have the same distance, the lower code is returned.

        Args:
            vectors: [B, C, h, w], finite.
        """
        check_finite(vectors, "samples")
        codebook = self.codebook
        flat = vectors.to(codebook).permute(0, 2, 3, 1)
        squares = codebook.pow(2).sum(1)
        # |x - c|^2 = |x|^2 + |c|^2 - 2 x c for a vector x and a codebook vector c. |x|^2 is the same for all codes.
        nearest = [(squares - 2 * rows @ codebook.T).argmin(-1) for rows in flat.flatten(0, 2).split(_DISTANCE_ROWS)]
        return torch.cat(nearest).view(flat.shape[:3])

    @own_torch_state()
    def encode(self, pixels: Tensor, check: Check | None = None) -> Tensor:
        """Convert images to codes [B, h, w] int64.

        Args:
            pixels: [B, 3, H, W] in [-1, 1]. H and W must be multiples of ``downsample``.
            check: Called before every layer. It may raise an exception to cancel.

        Raises:
            AdtError: If a pixel is infinite or NaN, or the encoder returns such values.
        """
        check_finite(pixels, "pixels")
        with cancellable(check, self):
            return self.nearest(_finite(self._encode(pixels.to(self.codebook))))

    @own_torch_state()
    def decode(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """Convert codes [B, h, w] int64 to images: [B, 3, H, W] pixels in [-1, 1].

        Args:
            check: Called before every layer. It may raise an exception to cancel.

        Raises:
            AdtError: If the decoder returns infinite or NaN values.
        """
        with cancellable(check, self):
            return _finite(self._decode(self.lookup(codes))).clamp(-1, 1)

    def _encode(self, pixels: Tensor) -> Tensor:
        """Return the encoder's vectors [B, C, h, w] for pixels [B, 3, H, W], before quantisation to codes."""
        raise NotImplementedError

    def _decode(self, vectors: Tensor) -> Tensor:
        """Return pixels [B, 3, H, W] for codebook vectors [B, C, h, w], before they are clamped to [-1, 1]."""
        raise NotImplementedError


class VQModel(Codec):
    """Codec of a VQGAN: encoder, codebook and decoder."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.downsample = config.downsample
        self.base_channels = config.base_channels
        self.encoder = VQEncoder(config)
        self.decoder = VQDecoder(config)
        self.quantize = Quantizer(config.num_embeddings, config.embed_dim)
        self.quant_conv = PointConv(config.latent_channels, config.embed_dim)
        self.post_quant_conv = PointConv(config.embed_dim, config.latent_channels)

    @property
    def codebook(self) -> Tensor:
        weight = super().codebook
        return F.normalize(weight, dim=-1) if self.config.normalised else weight

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.quant_conv(self.encoder(pixels))

    def _decode(self, vectors: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(vectors))
