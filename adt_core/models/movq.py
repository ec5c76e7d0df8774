"""MoVQGAN: a VQGAN whose decoder uses the codebook vectors in every norm (Zheng et al., arXiv 2209.09002).

After each group norm of the decoder, the features at each position are scaled and shifted. Scale and shift are linear
functions of a codebook vector: that of the code at this place in the image (spatially conditional normalisation). The
other parts are those of :mod:`.vq`, with attention at the coarsest level.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch.nn.functional as F
from torch import Tensor, nn

from .vq import PointConv, VQConfig, VQModel

_decoded: ContextVar[Tensor] = ContextVar("decoded")
"""Codebook vectors [B, C, h, w] of the images that are decoded at the moment: B images, C channels, h x w codes. A
context variable hands them to the norms, because the modules between decoder and norms take only one argument."""


class SpatialNorm(nn.Module):
    """Group norm of x [B, channels, H, W], then scale and shift by linear functions of the images' codebook vectors."""

    def __init__(self, norm: nn.GroupNorm, width: int):
        super().__init__()
        self.norm_layer = norm
        self.conv_y = PointConv(width, norm.num_channels)
        self.conv_b = PointConv(width, norm.num_channels)

    def forward(self, x: Tensor) -> Tensor:
        vectors = F.interpolate(_decoded.get(), x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(vectors) + self.conv_b(vectors)


class MoVQ(VQModel):
    """Codec of MoVQGAN: encoder, codebook and decoder."""

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
