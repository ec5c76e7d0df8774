"""Lookup tables for the target's forward passes, on the device of its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.rotary import Rope
from ..rules.verify import Neighbours
from .request import Request


@dataclass(frozen=True)
class Tables:
    """Lookup tables that all images of a request share.

    Attributes:
        rope: Tables of the decoder's rotary position embedding.
        guidance: Guidance scale at each raster position, or one scale for all positions.
        grammar: Vocabulary mask at each raster position; None if every token is allowed at every position.
        neighbours: For every token, the tokens whose codebook vectors are nearest; None without LANTERN.
    """

    rope: Rope
    guidance: Tensor | float
    grammar: Tensor | None
    neighbours: Neighbours | None

    @classmethod
    def of(cls, request: Request) -> Tables:
        """Make the tables of a request on the device of its weights."""
        target = request.target
        decoder = request.target.decoder
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        neighbours = None
        if request.lantern is not None:
            nearest = target.codec.neighbours(request.lantern.neighbours).padded(target.num_tokens)
            neighbours = nearest.to(decoder.embedding.device)
        return cls(
            target.rope, target.guidance(request.sampling.guidance_scale, like), target.grammar(like), neighbours
        )
