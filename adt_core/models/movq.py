"""MoVQGAN: a VQGAN whose decoder norms depend on the codebook vectors that are decoded.

Zheng et al., arXiv 2209.09002. The group norms of the decoder are scaled and shifted at each position by linear
functions of the vectors (spatially conditional norms). The rest is as in :mod:`.vq`, with attention at the coarsest
level.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch.nn.functional as F
from torch import Tensor, nn

from .vq import VQConfig, VQModel

_decoded: ContextVar[Tensor] = ContextVar("decoded")
"""Codebook vectors [B, C, h, w] that are being decoded. The norms are too deep in the decoder for an argument."""


class SpatialNorm(nn.Module):
    """Group norm of x [B, channels, H, W], scaled and shifted by linear maps of the nearest codebook vectors."""

    def __init__(self, norm: nn.GroupNorm, width: int):
        super().__init__()
        self.norm_layer = norm
        self.conv_y = nn.Conv2d(width, norm.num_channels, 1)
        self.conv_b = nn.Conv2d(width, norm.num_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        vectors = F.interpolate(_decoded.get(), x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(vectors) + self.conv_b(vectors)


class MoVQ(VQModel):
    """Encoder, codebook and decoder of a MoVQGAN."""

    def __init__(self, config: VQConfig):
        super().__init__(config)
        for parent in list(self.decoder.modules()):
            for name, norm in list(parent.named_children()):
                if isinstance(norm, nn.GroupNorm):
                    setattr(parent, name, SpatialNorm(norm, config.embed_dim))

    def _decode(self, vectors: Tensor) -> Tensor:
        token = _decoded.set(vectors)
        try:
            return super()._decode(vectors)
        finally:
            _decoded.reset(token)
