"""Models to measure: the bundled model, and models with random weights in the shapes of published models.

All parts of the GPU benchmark create models, drafters and pipelines with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adt_core import Decoding, Drafting, Lantern, Pipeline, Recipe, Sampling, Target, load_drafter, load_target
from adt_core.drafters import Drafter, default_options
from adt_core.drafters.eagle import EagleDrafter
from adt_core.drafters.eagle_files import new_config
from adt_core.lab.benchmark import drafters_by_name
from adt_core.lab.presets import PRESETS
from adt_core.models.cache import KVCache
from adt_core.models.config import QUANTISED, DecoderConfig
from adt_core.models.layers import Decoder
from adt_core.models.quantised import quantise, store
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.models.target import EncodedPrompt, Prompter
from adt_core.models.vq import VQConfig, VQModel
from adt_core.policies import PLAIN, RELAXED
from adt_core.policies.adt_tree import AdtTree
from adt_core.trace import Round

from . import device

ADT_TREE = "adt-tree"
WINDOW = "jacobi"
MERGED = "merged"
LANTERN = f"adt-tree{RELAXED}"
TITLES = {
    PLAIN: "plain",
    "eagle2": "EAGLE-2",
    ADT_TREE: "ADT-Tree",
    "static:naive_extend_57": "fixed tree of 57",
    WINDOW: "window",
    MERGED: "network and window",
    "auto": "auto",
    LANTERN: "ADT-Tree, LANTERN",
}
"""Compared methods: name in `PRESETS` -> title in the tables."""


class ModelShape(NamedTuple):
    """Shape of a published model."""

    config: DecoderConfig
    codes: int  # in the codebook
    grid: tuple[int, int]  # rows and columns of image tokens
    row_end: bool = False  # whether an end-of-row token follows each row
    prompt: int = 24  # number of tokens in the conditional prompt
    guided: int = 2  # number of tokens in the unconditional prompt

    def small(self) -> ModelShape:
        """Return a small shape with the same features. A forward of this shape takes about a millisecond on a CPU."""
        c = self.config
        side = 8
        heads = {"num_heads": 2, "num_kv_heads": 1 if c.num_kv_heads < c.num_heads else 2}
        size = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "max_positions": 256}
        grid_rope = c.grid_rope and (c.grid_rope[0], side)
        config = replace(c, **size, **heads, grid_rope=grid_rope, head_hidden_size=32 * bool(c.head_hidden_size))
        return self._replace(config=config, codes=64, grid=(side, side))


_CHAMELEON = DecoderConfig(65536, 4096, 11008, 32, 32, 32, 1e-5, 1e4, 4096)
_LLAMAGEN = DecoderConfig(16384, 1280, 3584, 36, 20, 20, 1e-5, 1e4, 2048, qk_norm=False, grid_rope=(120, 32))
_JANUS = DecoderConfig(118784, 2048, 5632, 24, 16, 16, 1e-6, 1e4, 16384, qk_norm=False, head_hidden_size=2048)
_EMU3 = DecoderConfig(184622, 4096, 14336, 32, 32, 8, 1e-5, 1e6, 9216, qk_norm=False)
SHAPES = {
    "Anole-7B": ModelShape(_CHAMELEON, 8192, (32, 32)),
    "LlamaGen-XL": ModelShape(_LLAMAGEN, 16384, (32, 32), prompt=120, guided=120),
    "Janus-Pro-1B": ModelShape(_JANUS, 16384, (24, 24), guided=24),
    "Lumina-mGPT-7B": ModelShape(_CHAMELEON, 8192, (48, 48), row_end=True, prompt=48, guided=4),
    "Emu3-Gen": ModelShape(_EMU3, 32768, (90, 90), row_end=True, prompt=48, guided=48),
}
"""Shapes of published models, by name."""
LONGEST_STEP = 32  # estimated maximum number of tokens that a round decodes
SEVEN_B = "Anole-7B"
GUIDANCE_SCALE = 3.0  # times do not depend on it


def shape_of(name: str, rehearse: bool) -> ModelShape:
    """Return a shape of `SHAPES`, or its small variant for a rehearsal."""
    return SHAPES[name].small() if rehearse else SHAPES[name]


# ---- random weights -------------------------------------------------------------------------------


class _FixedLengthPrompter(Prompter):
    """Prompter that ignores the text. It returns the token ids 1, 2, 3, ... up to the prompt length of a shape."""

    def __init__(self, shape: ModelShape):
        self._shape = shape

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(range(1, self._shape.prompt + 1))

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(range(1, self._shape.guided + 1))


@torch.no_grad()
def _allocate_and_randomise(network: nn.Module, device: torch.device) -> None:
    """Move a network from the device "meta", and fill every parameter.

    Norms become the identity. Matrices get random numbers, scaled so that output and input have the same variance.
    """
    network.to_empty(device=device).requires_grad_(False).eval()
    torch.manual_seed(0)
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            scale = getattr(module, f"{name}_scale", None)
            if "norm" in name or parameter.ndim == 1:
                parameter.fill_(float("norm" in name and not name.endswith("bias")))
            elif scale is None:
                parameter.normal_(std=1.0 if name == "embedding" else parameter.shape[0] ** -0.5)
            else:
                inputs = len(parameter) * (2 if parameter.dtype == QUANTISED["int4"] else 1)
                store(parameter, scale, torch.randn(inputs, parameter.shape[1], device=scale.device) * inputs**-0.5)


def random_target(name: str, shape: ModelShape, dtype: torch.dtype, weights: str | None = None) -> Target:
    """Create a target with random weights on the device. Its codec is smaller than the codec of the published model.

    Args:
        weights: Quantisation of the matrices, "int8", "fp8" or "int4". None does not quantise.
    """
    where = device.the_device()
    config = shape.config
    kinds = shape.codes + shape.row_end
    with torch.device("meta"):
        decoder = Decoder(config, torch.arange(kinds), shape.codes)
    decoder.set_dtype(dtype)
    if weights is not None:
        quantise(decoder, weights)
    _allocate_and_randomise(decoder, where)
    decoder.image_ids = torch.arange(config.vocab_size - kinds, config.vocab_size, device=where)
    codec = VQModel(VQConfig(8, shape.codes, 32, 16 * shape.grid[0], 3, 32, (1,) * 5, 1)).to(where).eval()
    target = Target(name, "random", decoder, codec, shape.grid, shape.row_end)
    target.prompter = _FixedLengthPrompter(shape)
    return target


def random_network(target: Target) -> EagleDrafter:
    """Create an EAGLE drafter with random weights and the hidden size of the target."""
    config = new_config(target.decoder.config)
    with torch.device("meta"):
        network = EagleDrafter(config, input_norm=target.decoder.config.qk_norm)
    network.to(target.decoder.dtype)
    _allocate_and_randomise(network, target.decoder.embedding.device)
    return network


def weight_bytes(target: Target) -> int:
    """Return the size in bytes of the weights that a plain round reads: layers and head, without the embedding."""
    decoder = target.decoder
    parts = [*decoder.layers.parameters(), *decoder.layers.buffers(), decoder.head, decoder.head_in]
    return sum(part.numel() * part.element_size() for part in parts if part is not None)


def all_bytes(*networks: nn.Module | None) -> int:
    """Return the size in bytes of all parameters and buffers of some networks. None counts as 0."""
    tensors = [t for network in networks if network is not None for t in (*network.parameters(), *network.buffers())]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- pipelines -----------------------------------------------------------------------------------------


@cache
def trained(
    dtype: torch.dtype, rehearse: bool, weights: str | None = None, where: torch.device | None = None
) -> tuple[Target, Drafter]:
    """Return the bundled model and its drafter network. In a rehearsal, return small random ones instead.

    Args:
        where: Device of the bundled model; None for the measured device.
    """
    if rehearse:
        target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), dtype, weights)
        return target, random_network(target)
    target = load_target("bundled", where or device.the_device(), dtype, weights=weights)
    return target, load_drafter("bundled", target)


def pipeline_of(target: Target, network: Drafter | None, method: str) -> Pipeline:
    """Return a pipeline with a method of `TITLES` and guidance.

    Args:
        network: Drafter network. None is enough for methods without a network.
        method: Key of `TITLES`.
    """
    preset = PRESETS[method.removesuffix(RELAXED)]
    lantern = Lantern(100, 0.1) if method.endswith(RELAXED) else None
    drafter = drafters_by_name(network).get(preset.source) if preset.source else None
    sampling = Sampling(1, guidance_scale=GUIDANCE_SCALE)
    drafting = preset.drafting
    if drafting.policy is AdtTree and drafter is not None:  # the preset has the small trees for CPUs
        defaults = default_options(drafter, device.the_device().type, sampling.guided, method=ADT_TREE)
        drafting = drafting.replace(**{**defaults, "method": ADT_TREE})
    return Pipeline(target, Recipe(sampling, drafting, lantern), drafter)


def tree_pipeline(target: Target, network: Drafter, depth: int, width: int, drafts: int) -> Pipeline:
    """Return a pipeline in which the network drafts trees of a fixed shape."""
    tree = Drafting("eagle2", depth=depth, width=width, drafts=drafts)
    pipeline = pipeline_of(target, network, ADT_TREE)
    return replace(pipeline, recipe=replace(pipeline.recipe, drafting=tree))


def with_quarter_grid(target: Target) -> Target:
    """Return a copy of the target with half as many rows and half as many columns of image tokens."""
    smaller = copy(target)
    smaller.grid = (target.grid[0] // 2, target.grid[1] // 2)
    return smaller


def decode_rounds(decoding: Decoding, rounds: int | None = None) -> Tensor:
    """Decode some rounds.

    Args:
        decoding: Decoding that has not begun.
        rounds: Number of rounds. None decodes all rounds.

    Returns:
        Codes [B, T] of B images with T tokens. -1 marks tokens that were not decoded.
    """
    running = iter(decoding)
    for _ in islice(running, rounds):
        pass
    running.close()
    return decoding.codes


class Stream:
    """Endless sequence of rounds of one method.

    The rounds start in the middle of an image. At the end of the image, they start again in the middle of a new image.

    Args:
        mode: Launch mode, `device.EAGER` or `device.CAPTURED`.
        warm_up: Number of untimed rounds after each start.
    """

    def __init__(self, pipeline: Pipeline, mode: str, images: int = 1, warm_up: int = 4):
        self._pipeline = pipeline
        self._mode = mode
        self._images = images
        self._warm_up = warm_up
        self.rounds: list[Round] = []  # all timed rounds
        self._open()

    def _open(self) -> None:
        target = self._pipeline.target
        cells = target.grid[0] * target.grid[1] // 2
        prefix = torch.arange(cells).expand(self._images, -1) % target.num_codes
        indices = list(range(self._images))
        self.decoding = self._pipeline.decoding(["A picture."] * self._images, indices, kept=prefix)
        self._running = iter(self.decoding)
        with device.launch_mode(self._mode):
            for _ in range(self._warm_up):
                next(self._running)

    def seconds(self) -> float:
        """Decode the next round and return its time in seconds."""
        with device.launch_mode(self._mode):
            seconds = device.seconds_of(lambda: self.rounds.append(next(self._running)))
        if bool((self.decoding.codes[:, -1] >= 0).any()):
            self.close()
            self._open()
        return seconds

    def profiled(self, count: int) -> device.Activity | None:
        """Decode `count` rounds under the profiler.

        Returns:
            Mean activity of a round. None if the profiler records no kernel.
        """
        if int((self.decoding.codes < 0).sum(1).min()) < LONGEST_STEP * count:
            self.close()
            self._open()
        with device.launch_mode(self._mode):
            total = device.profiled(lambda: [next(self._running, None) for _ in range(count)])
        if total is None:
            return None
        return device.Activity(total.kernels // count, total.launches // count, total.busy / count)

    def close(self) -> None:
        """Free the caches."""
        self._running.close()


@torch.inference_mode()
def forwards_of(target: Target, sizes: Sequence[int]) -> dict[int, Callable[[], Tensor]]:
    """Return functions that run one forward through the layers and the head.

    Returns:
        One function per number of tokens. The tokens of a forward form a chain in the middle of an image.
    """
    decoder = target.decoder
    where = decoder.embedding.device
    prompt = target.encode_prompt("A picture.")
    cache_length = len(prompt) + target.length + max(sizes) + 1
    rows = BatchRows([prompt, target.unconditional(prompt)], cache_length, decoder.embedding, images=1)
    roots = Roots.all_at(torch.zeros(1, dtype=torch.long, device=where), target.length // 2)
    cache = KVCache(decoder.config, rows.count, cache_length, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)

    def forward_of(size: int) -> Callable[[], Tensor]:
        step = rows.causal_metadata(roots, size)
        ids = rows.spread(decoder.image_ids[torch.arange(size, device=where) % target.num_codes][None])
        return torch.inference_mode()(lambda: decoder.logits(decoder(ids, step, cache, rope), GUIDANCE_SCALE))

    return {size: forward_of(size) for size in sizes}
