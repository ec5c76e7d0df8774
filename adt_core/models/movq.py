"""MoVQGAN: a VQGAN whose decoder is told at every norm which codebook vectors it decodes.

Zheng et al., arXiv 2209.09002. Its decoder's group norms are scaled and shifted, place by place, by linear functions of
the vectors (spatially conditional norms). All else is as in :mod:`.vq`, with attention at the coarsest level.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch.nn.functional as F
from torch import Tensor, nn

from .vq import VQConfig, VQModel

_decoded: ContextVar[Tensor] = ContextVar("decoded")
"""The codebook vectors [B, C, h, w] that are being decoded: norms lie too deep in the decoder to be handed them."""


class SpatialNorm(nn.Module):
    """x [B, channels, H, W], normed, then scaled and shifted by what two linear maps make of the nearest vectors."""

    def __init__(self, norm: nn.GroupNorm, width: int):
        super().__init__()
        self.norm_layer = norm
        self.conv_y, self.conv_b = (nn.Conv2d(width, norm.num_channels, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        vectors = F.interpolate(_decoded.get(), x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(vectors) + self.conv_b(vectors)


class MoVQ(VQModel):
    """Encoder, codebook and decoder."""

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
