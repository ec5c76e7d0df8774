"""Lookup tables of forwards, on the device of the weights."""

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
        rope: Rotary tables of the decoder.
        guidance: Guidance scale by position, or one scale.
        grammar: Vocabulary mask by position, or None.
        neighbours: Nearest codebook neighbours of every token, for LANTERN; None without it.
    """

    rope: Rope
    guidance: Tensor | float
    grammar: Tensor | None
    neighbours: Neighbours | None

    @classmethod
    def of(cls, request: Request) -> Tables:
        """Make the tables of a request where its weights are now."""
        target = request.target
        decoder = request.target.decoder
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        neighbours = None
        if request.lantern is not None:
            nearest = target.codec.neighbours(request.lantern.neighbours).padded(target.num_tokens)
            neighbours = nearest.to(decoder.embedding.device)
        return cls(target.rope, target.guidance(request.sampling.guidance, like), target.grammar(like), neighbours)
