"""Draft modes that need no published drafter, for tests of a model family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from adt_core import Decoding, Drafting, EncodedPrompt, Lantern, Recipe, Sampling, Target
from adt_core.engine.request import Request
from adt_core.policies import PLAIN, CostProfile
from tests.tiny import chameleon_config, layer_tensors, save_checkpoint

METHODS = {
    "eagle2": ("network", dict(method="eagle2", depth=4, width=3, drafts=12)),
    "adt-tree": ("network", dict(method="adt-tree")),
    "adt-tree, top-k": ("network", dict(method="adt-tree", proposal="top-k")),
    "static": ("network", dict(method="static:mc_sim_7b_63")),
    "jacobi": ("jacobi", dict(method="eagle2", depth=12, width=3, drafts=16)),
    "jacobi, top-k": ("jacobi", dict(method="eagle2", depth=12, width=2, drafts=16, proposal="top-k")),
    "jacobi, a chain": ("jacobi", dict(method="eagle2", depth=8, width=1, drafts=8)),
    "jacobi, adt-tree": ("jacobi", dict(method="adt-tree")),
    "merged": ("network+jacobi", dict(method="eagle2", depth=12, width=3, drafts=16)),
    "auto, jacobi": ("jacobi", dict(method="auto")),
    "auto, merged": ("network", dict(method="auto")),
}
"""Name of a method -> drafter and draft settings. Tests replace ``network`` by the folder of a drafter."""


def write_drafter(folder: Path, target: Target, *, seed: int = 4) -> Path:
    """Write an EAGLE drafter with random weights and the embedding of ``target``. Return its folder."""
    c = target.decoder.config
    generator = torch.Generator().manual_seed(seed)
    h = c.hidden_size
    tensors = {
        "embed_tokens.weight": target.decoder.embedding.float(),
        "fc.weight": torch.randn(h, 2 * h, generator=generator) * (2 * h) ** -0.5,
        "fc.bias": torch.zeros(h),
    }
    tensors |= layer_tensors(generator, "layers.0", h, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim)
    if not c.qk_norm:
        tensors = {name: value for name, value in tensors.items() if "_norm." not in name or "self_attn" not in name}
    sizes = c.vocab_size, h, c.intermediate_size, 1, c.num_heads, c.num_kv_heads, c.max_positions
    return save_checkpoint(
        folder, chameleon_config(*sizes) | {"rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta}, tensors
    )


def costs(*sources: str, once: float = 0.0, each: float = 0.0, idle: float = 1.0, images: int = 1) -> CostProfile:
    """Return the cost profile of a device that supports only the draft modes ``sources``.

    Args:
        once: Cost of drafting in a round, independent of the number of drafts. Unit: one plain round.
        each: Cost of each draft token, in plain rounds.
        idle: Cost of a round without drafts, in plain rounds.
    """
    curve = (0, idle), (1, idle + once + each), (64, idle + once + 64 * each)
    return CostProfile("a test's device", images, dict.fromkeys(sources, curve))


def new_decoding(
    target: Target,
    prompts: Sequence[EncodedPrompt],
    *,
    sampling: Sampling = Sampling(),
    drafting: Drafting = Drafting(),
    lantern: Lantern | None = None,
    profile: CostProfile | None = None,
    batch_size: int | None = None,
    **batch,
) -> Decoding:
    """Return the decoding of encoded prompts with some settings. ``batch`` are further arguments of `Request.of`."""
    recipe = Recipe(sampling, drafting, lantern, profile=profile)
    return Decoding(Request.of(target, recipe, prompts, **batch), batch_size)


def run(target: Target, drafter=None, prompts: tuple[str, ...] = ("a cat", "three small dogs"), **options) -> Decoding:
    """Decode images of the prompts and return the finished decoding.

    If ``options`` has no ``drafting``, the images are decoded without drafts.
    """
    rows = [target.encode_prompt(prompt) for prompt in prompts]
    return new_decoding(target, rows, drafter=drafter, **{"drafting": Drafting(PLAIN), **options}).run()
