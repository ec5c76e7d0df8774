"""The VQGAN codec: pixels <-> codebook indices.

Module names follow Chameleon's checkpoints (``encoder.down.0.block.0.conv1`` ...), so that the
``model.vqmodel.*`` tensors of an Anole checkpoint load as they are, decoder included (transformers
has the encoder only). Architecture: Esser et al., arXiv 2012.09841, as used by Chameleon; with attention at the coarsest
level and a codebook on the unit sphere it is VQ-16 of LlamaGen (arXiv 2406.06525) and Janus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..rules.verify import Neighbours

Check = Callable[[], None]


@dataclass(frozen=True)
class VQConfig:
    """The fields of a Chameleon ``vq_config`` that shape the network (same names and defaults), and what VQ-16 has besides.

    attention: an attention block follows every residual block of the coarsest level. normalised: codebook vectors are scaled to length 1 before use.
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
    def from_dict(cls, values: dict) -> VQConfig:
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        if "channel_multiplier" in known:
            known["channel_multiplier"] = tuple(known["channel_multiplier"])
        return cls(**known)

    @property
    def downsample(self) -> int:
        """Pixels per token side."""
        return 2 ** (len(self.channel_multiplier) - 1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.norm1 = _norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = _norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if channels != out_channels:
            self.nin_shortcut = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class AttnBlock(nn.Module):
    """Single-head self-attention over all positions of the map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(h.transpose(1, 2).reshape(x.shape))


class Downsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def coarsest_first(name: str, config: VQConfig) -> str:
    """What the parameter ``name`` is called where ``decoder.up.0`` is the coarsest level instead of the finest (LlamaGen, transformers' Janus)."""
    parts = name.split(".")
    if parts[:2] == ["decoder", "up"]:
        parts[2] = str(len(config.channel_multiplier) - 1 - int(parts[2]))
    return ".".join(parts)


_AUTHORS = (
    (".down.", ".conv_blocks."),
    (".up.", ".conv_blocks."),
    (".block.", ".res."),
    ("mid.block_1.", "mid.0."),
    ("mid.attn_1.", "mid.1."),
    ("mid.block_2.", "mid.2."),
)


def authors_name(name: str, config: VQConfig) -> str:
    """What the parameter ``name`` is called in VQ-16's own layout (LlamaGen's ``vq_ds16_t2i.pt``, DeepSeek's Janus)."""
    name = coarsest_first(name, config)
    for ours, theirs in _AUTHORS:
        name = name.replace(ours, theirs)
    return name


def _middle(channels: int) -> nn.Module:
    mid = nn.Module()
    mid.block_1, mid.attn_1, mid.block_2 = (
        ResBlock(channels, channels),
        AttnBlock(channels),
        ResBlock(channels, channels),
    )
    return mid


def _level(blocks: list[ResBlock], attention: bool) -> nn.Module:
    """The blocks of one level; with ``attention``, one more behind each of them."""
    level = nn.Module()
    level.block = nn.ModuleList(blocks)
    if attention:
        level.attn = nn.ModuleList(AttnBlock(block.conv2.out_channels) for block in blocks)
    return level


def _stages(level: nn.Module, resample: str) -> list[nn.Module]:
    """Its modules in the order in which they run."""
    blocks = (
        [module for pair in zip(level.block, level.attn) for module in pair]
        if hasattr(level, "attn")
        else [*level.block]
    )
    return blocks + ([getattr(level, resample)] if hasattr(level, resample) else [])


def _run(stages: list[nn.Module], x: Tensor, check: Check | None) -> Tensor:
    for stage in stages:
        if check is not None:
            check()
        x = stage(x)
    return x


class Encoder(nn.Module):
    def __init__(self, config: VQConfig):
        super().__init__()
        widths = [config.base_channels * m for m in config.channel_multiplier]
        self.conv_in = nn.Conv2d(config.in_channels, config.base_channels, 3, padding=1)
        self.down, channels = nn.ModuleList(), config.base_channels
        for level, width in enumerate(widths):
            coarsest = level + 1 == len(widths)
            blocks = [ResBlock(channels if i == 0 else width, width) for i in range(config.num_res_blocks)]
            down = _level(blocks, config.attention and coarsest)
            if not coarsest:
                down.downsample = Downsample(width)
            self.down.append(down)
            channels = width
        self.mid = _middle(channels)
        self.norm_out, self.conv_out = _norm(channels), nn.Conv2d(channels, config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor, check: Check | None = None) -> Tensor:
        stages = [self.conv_in]
        for down in self.down:
            stages += _stages(down, "downsample")
        x = _run([*stages, self.mid.block_1, self.mid.attn_1, self.mid.block_2], x, check)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    """Mirror of the encoder with one more block per level; ``up.0`` is the finest level."""

    def __init__(self, config: VQConfig):
        super().__init__()
        widths = [config.base_channels * m for m in config.channel_multiplier]
        channels = widths[-1]
        self.conv_in = nn.Conv2d(config.latent_channels, channels, 3, padding=1)
        self.mid, levels = _middle(channels), []
        for level, width in reversed(list(enumerate(widths))):
            blocks = [ResBlock(channels if i == 0 else width, width) for i in range(config.num_res_blocks + 1)]
            up = _level(blocks, config.attention and level + 1 == len(widths))
            if level > 0:
                up.upsample = Upsample(width)
            levels.insert(0, up)
            channels = width
        self.up = nn.ModuleList(levels)
        self.norm_out, self.conv_out = _norm(channels), nn.Conv2d(channels, config.in_channels, 3, padding=1)

    def forward(self, x: Tensor, check: Check | None = None) -> Tensor:
        stages = [self.conv_in, self.mid.block_1, self.mid.attn_1, self.mid.block_2]
        for up in reversed(self.up):
            stages += _stages(up, "upsample")
        return self.conv_out(F.silu(self.norm_out(_run(stages, x, check))))


_ROWS = 1024  # of the distance matrix at a time


class Quantizer(nn.Module):
    def __init__(self, config: VQConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.num_embeddings, config.embed_dim)


class Codec(nn.Module):
    """What is the same in every codec: its codebook. Works in float32 whatever the transformer's dtype is.

    ``config`` says at least ``resolution`` (pixels per side that it is best at), ``downsample`` (pixels per token side) and ``base_channels``.
    """

    def __init__(self):
        super().__init__()
        self._nearest: Neighbours | None = None

    @property
    def codebook(self) -> Tensor:
        """[num_codes, C] codebook vectors, as they are decoded."""
        return self.quantize.embedding.weight

    def neighbours(self, k: int) -> Neighbours:
        """The ``k`` nearest neighbours of every code, on the CPU; computed once."""
        if self._nearest is None or self._nearest.indices.shape[1] != min(k, len(self.codebook) - 1):
            self._nearest = Neighbours.of(self.codebook, k).to(
                torch.device("cpu")
            )  # so that nothing stays behind when weights are unloaded
        return self._nearest

    def working_bytes(self, pixels: int) -> int:
        """Memory that decoding or encoding an image of so many pixels takes: at full resolution a block keeps about eight float32 maps alive."""
        return pixels * self.config.base_channels * 8 * 4

    def lookup(self, codes: Tensor) -> Tensor:
        """codes [B, h, w] int64 -> codebook vectors [B, C, h, w]."""
        return F.embedding(codes.to(self.codebook.device), self.codebook).permute(0, 3, 1, 2).contiguous()

    def nearest(self, vectors: Tensor) -> Tensor:
        """vectors [B, C, h, w] -> the nearest codes [B, h, w] int64 (Euclidean, ties to the lower index)."""
        codebook = self.codebook
        flat, squares = vectors.to(codebook).permute(0, 2, 3, 1), codebook.pow(2).sum(1)
        nearest = [(squares - 2 * rows @ codebook.T).argmin(-1) for rows in flat.flatten(0, 2).split(_ROWS)]
        return torch.cat(nearest).view(flat.shape[:3])

    def encode(self, pixels: Tensor, check: Check | None = None) -> Tensor:
        """pixels [B, 3, H, W] in [-1, 1], H and W multiples of ``config.downsample`` -> codes [B, h, w]."""
        raise NotImplementedError

    def decode(self, codes: Tensor, check: Check | None = None) -> Tensor:
        """codes [B, h, w] int64 -> pixels [B, 3, H, W] in [-1, 1]."""
        raise NotImplementedError


class VQModel(Codec):
    """Encoder, codebook and decoder of a VQGAN."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.encoder, self.decoder, self.quantize = Encoder(config), Decoder(config), Quantizer(config)
        self.quant_conv = nn.Conv2d(config.latent_channels, config.embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)

    @property
    def codebook(self) -> Tensor:
        weight = super().codebook
        return F.normalize(weight, dim=-1) if self.config.normalised else weight

    def encode(self, pixels: Tensor, check: Check | None = None) -> Tensor:
        return self.nearest(self.quant_conv(self.encoder(pixels.to(self.codebook), check)))

    def decode(self, codes: Tensor, check: Check | None = None) -> Tensor:
        return self.decoder(self.post_quant_conv(self.lookup(codes)), check).clamp(-1, 1)
