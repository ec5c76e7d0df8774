"""What is measured: the bundled model, and random weights in the shapes of published models.

This file alone knows how the engine's models, drafters and decodings are made.
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

from adt_core import Decoding, Drafting, Lantern, Sampling, Target, load_drafter, load_target
from adt_core.app.jobs import new_decoding
from adt_core.drafters import Drafter
from adt_core.drafters.eagle import EagleDrafter
from adt_core.drafters.eagle_files import new_config
from adt_core.engine.job import Job
from adt_core.lab.benchmark import PRESETS, RELAXED, drafters_by_name
from adt_core.models.cache import KVCache
from adt_core.models.config import DecoderConfig
from adt_core.models.layers import Decoder
from adt_core.models.quantised import quantise, store
from adt_core.models.rotary import rope_tables
from adt_core.models.rows import BatchRows, Roots
from adt_core.models.target import EncodedPrompt, Prompter
from adt_core.models.vq import VQConfig, VQModel
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_core.rules.trace import Round

from . import device

ADT_TREE, WINDOW, BOTH, LANTERN = "adt-tree", "jacobi", "merged", f"adt-tree{RELAXED}"
TITLES = {
    PLAIN: "plain",
    "eagle2": "EAGLE-2",
    ADT_TREE: "ADT-Tree",
    "static:naive_extend_57": "fixed tree of 57",
    WINDOW: "window",
    BOTH: "network and window",
    "auto": "auto",
    LANTERN: "ADT-Tree, LANTERN",
}
"""Every method that is compared, by its name in the table of presets."""


class Shape(NamedTuple):
    """What a published model looks like. guided: tokens of the row without text; prompt: of the row with one."""

    config: DecoderConfig
    codes: int
    grid: tuple[int, int]
    row_end: bool = False
    prompt: int = 24
    guided: int = 2
    guidance: float = 3.0

    def small(self) -> Shape:
        """One of the same kind that a CPU runs in a millisecond."""
        c, side = self.config, 8
        heads = {"num_heads": 2, "num_kv_heads": 1 if c.num_kv_heads < c.num_heads else 2}
        size = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "max_positions": 256}
        grid_rope = c.grid_rope and (c.grid_rope[0], side)
        config = replace(c, **size, **heads, grid_rope=grid_rope, head_width=32 * bool(c.head_width))
        return self._replace(config=config, codes=64, grid=(side, side))


_CHAMELEON = DecoderConfig(65536, 4096, 11008, 32, 32, 32, 1e-5, 1e4, 4096)
_LLAMAGEN = DecoderConfig(16384, 1280, 3584, 36, 20, 20, 1e-5, 1e4, 2048, qk_norm=False, grid_rope=(120, 32))
_JANUS = DecoderConfig(118784, 2048, 5632, 24, 16, 16, 1e-6, 1e4, 16384, qk_norm=False, head_width=2048)
_EMU3 = DecoderConfig(184622, 4096, 14336, 32, 32, 8, 1e-5, 1e6, 9216, qk_norm=False)
SHAPES = {
    "Anole-7B": Shape(_CHAMELEON, 8192, (32, 32)),
    "LlamaGen-XL": Shape(_LLAMAGEN, 16384, (32, 32), prompt=120, guided=120, guidance=7.5),
    "Janus-Pro-1B": Shape(_JANUS, 16384, (24, 24), guided=24, guidance=5.0),
    "Lumina-mGPT-7B": Shape(_CHAMELEON, 8192, (48, 48), row_end=True, prompt=48, guided=4),
    "Emu3-Gen": Shape(_EMU3, 32768, (90, 90), row_end=True, prompt=48, guided=48),
}
"""Random weights have these shapes: layers, heads and widths of the published models, and their grids."""
LONGEST_STEP = 32
"""Tokens that a round decides at most, or nearly so."""
SEVEN_B = "Anole-7B"


def shape_of(name: str, rehearse: bool) -> Shape:
    return SHAPES[name].small() if rehearse else SHAPES[name]


# ---- random weights -------------------------------------------------------------------------------


class _Numbers(Prompter):
    """Prompts of a shape's lengths; what they say is random weights' business."""

    def __init__(self, shape: Shape):
        self._shape = shape

    def encode(self, text: str, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(range(1, self._shape.prompt + 1))

    def unconditional(self, prompt: EncodedPrompt, grid: tuple[int, int]) -> EncodedPrompt:
        return EncodedPrompt(range(1, self._shape.guided + 1))


@torch.no_grad()
def _randomise(network: nn.Module) -> None:
    """Fill every parameter where it is: norms change nothing, matrices keep the size of what they read."""
    torch.manual_seed(0)
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            scale = getattr(module, f"{name}_scale", None)
            if "norm" in name or parameter.ndim == 1:
                parameter.fill_(float("norm" in name and not name.endswith("bias")))
            elif scale is None:
                parameter.normal_(std=1.0 if name == "embedding" else parameter.shape[0] ** -0.5)
            else:
                store(parameter, scale, torch.randn(parameter.shape, device=scale.device) * parameter.shape[0] ** -0.5)


def _filled(network: nn.Module, where: torch.device) -> None:
    network.to_empty(device=where).requires_grad_(False).eval()
    _randomise(network)


def random_target(name: str, shape: Shape, dtype: torch.dtype, weights: str | None = None) -> Target:
    """A target with random weights on the device; a tiny codec stands in for the model's own."""
    where, config, kinds = device.the_device(), shape.config, shape.codes + shape.row_end
    with torch.device("meta"):
        decoder = Decoder(config, torch.arange(kinds), shape.codes)
    decoder.set_dtype(dtype)
    if weights is not None:
        quantise(decoder, weights)
    _filled(decoder, where)
    decoder.image_ids = torch.arange(config.vocab_size - kinds, config.vocab_size, device=where)
    codec = VQModel(VQConfig(8, shape.codes, 32, 16 * shape.grid[0], 3, 32, (1,) * 5, 1)).to(where).eval()
    target = Target(name, "random", decoder, codec, shape.grid, shape.row_end)
    target.prompter = _Numbers(shape)
    return target


def random_network(target: Target) -> EagleDrafter:
    """An EAGLE drafter with random weights, as wide as the target."""
    ours = target.decoder.config
    config = new_config(ours)
    with torch.device("meta"):
        network = EagleDrafter(config, input_norm=ours.qk_norm)
    network.to(target.decoder.dtype)
    _filled(network, target.decoder.embedding.device)
    return network


def weight_bytes(target: Target) -> int:
    """Bytes of the weights that a plain step reads whole: layers and head."""
    decoder = target.decoder
    parts = [*decoder.layers.parameters(), *decoder.layers.buffers(), decoder.head, decoder.head_in]
    return sum(part.numel() * part.element_size() for part in parts if part is not None)


def all_bytes(*networks: nn.Module | None) -> int:
    """Bytes that networks take."""
    tensors = [t for network in networks if network is not None for t in (*network.parameters(), *network.buffers())]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- jobs -----------------------------------------------------------------------------------------


@cache
def bundled(dtype: torch.dtype, where: torch.device) -> tuple[Target, Drafter]:
    """The bundled model and its drafter network."""
    target = load_target("bundled", where, dtype)
    return target, load_drafter("bundled", target)


@cache
def trained(dtype: torch.dtype, rehearse: bool) -> tuple[Target, Drafter]:
    """The bundled model on the device. In a rehearsal it is too slow, and small random weights stand in for it."""
    if not rehearse:
        return bundled(dtype, device.the_device())
    target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), dtype)
    return target, random_network(target)


def job_of(target: Target, network: Drafter | None, method: str, **options: float) -> Job:
    """A method of TITLES on these models. options: of the sampling."""
    preset = PRESETS[method.removesuffix(RELAXED)]
    lantern = Lantern(100, 0.1) if method.endswith(RELAXED) else None
    drafter = drafters_by_name(network).get(preset.source) if preset.source else None
    return Job(target, Recipe(Sampling(**{"seed": 1, "guidance": 3.0, **options}), preset.drafting, lantern), drafter)


def tree_job(target: Target, network: Drafter, depth: int, width: int, nodes: int, **options: float) -> Job:
    """The network's trees, always of this shape."""
    tree = Drafting("eagle2", depth=depth, width=width, nodes=nodes)
    job = job_of(target, network, ADT_TREE, **options)
    return replace(job, recipe=replace(job.recipe, drafting=tree))


def halved(target: Target) -> Target:
    """The same model with a quarter of its cells."""
    smaller = copy(target)
    smaller.grid = (target.grid[0] // 2, target.grid[1] // 2)
    return smaller


def drawn(decoding: Decoding, rounds: int | None = None) -> Tensor:
    """The codes [B, T] after so many rounds, all if None; -1 where nothing is decided."""
    running = iter(decoding)
    for _ in islice(running, rounds):
        pass
    running.close()
    return decoding.codes


class Stream:
    """Rounds of one method, taken one at a time from the middle of an image on; then the image begins again.

    decoding: the one at work. rounds: those that were timed.
    """

    def __init__(self, job: Job, mode: str, images: int = 1, warm: int = 4):
        self._job, self._mode, self._images, self._warm = job, mode, images, warm
        self.rounds: list[Round] = []
        self._open()

    def _open(self) -> None:
        target = self._job.target
        cells = target.grid[0] * target.grid[1] // 2
        kept = torch.arange(cells).expand(self._images, -1) % target.num_codes
        indices = list(range(self._images))
        self.decoding = new_decoding(self._job, ["A picture."] * self._images, indices, prefix=kept)
        self._running = iter(self.decoding)
        with device.launched(self._mode):
            for _ in range(self._warm):
                next(self._running)

    def seconds(self) -> float:
        """Of the next round."""
        with device.launched(self._mode):
            seconds = device.seconds_of(lambda: self.rounds.append(next(self._running)))
        if bool((self.decoding.codes[:, -1] >= 0).any()):
            self.close()
            self._open()
        return seconds

    def profiled(self, count: int) -> device.Activity | None:
        """What the device does in a round: the mean of so many, which are not timed."""
        if int((self.decoding.codes < 0).sum(1).min()) < LONGEST_STEP * count:
            self.close()
            self._open()
        with device.launched(self._mode):
            seen = device.profiled(lambda: [next(self._running, None) for _ in range(count)])
        if seen is None:
            return None
        return device.Activity(seen.kernels // count, seen.launches // count, seen.busy / count, seen.names)

    def close(self) -> None:
        """Free the caches."""
        self._running.close()


@torch.inference_mode()
def forwards_of(target: Target, sizes: Sequence[int]) -> dict[int, Callable[[], Tensor]]:
    """By size, a forward over a chain of so many tokens in the middle of an image: layers, head and nothing else."""
    decoder = target.decoder
    where, prompt = decoder.embedding.device, target.encode_prompt("A picture.")
    cache_length = len(prompt) + target.length + max(sizes) + 1
    rows = BatchRows([prompt, target.unconditional(prompt)], cache_length, decoder.embedding, images=1)
    roots = Roots.all_at(torch.zeros(1, dtype=torch.long, device=where), target.length // 2)
    cache = KVCache(decoder.config, rows.count, cache_length, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)

    def of(size: int) -> Callable[[], Tensor]:
        step = rows.causal_step(roots, size)
        ids = rows.spread(decoder.image_ids[torch.arange(size, device=where) % target.num_codes][None])
        return torch.inference_mode()(lambda: decoder.logits(decoder(ids, step, cache, rope), 3.0))

    return {size: of(size) for size in sizes}
