"""What a decoding is asked for, checked, and what it takes of the device's memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..drafters import Drafter
from ..drafters.table import with_window
from ..errors import AdtError, Check
from ..models.batch_invariance import MASK_ALIGNMENT, near_window
from ..models.cache import KVCache
from ..models.quantised_matmul import supports_byte_matmul
from ..models.rotary import Rope
from ..models.target import EncodedPrompt, Target
from ..policies import CostProfile, Drafting, Policy, Scene, Shape, Source
from ..policies.recipe import Loading, Recipe
from ..rules.noise import NOISE_VERSION, Key, Kind, Noise, Own
from ..rules.settings import UPSTREAM, Lantern, Sampling
from ..rules.upstream import Upstream, maker
from ..rules.verify import Neighbours
from .graphs import MAX_GRAPHS

PROMPT_STEP = 128
"""Where rounds are replayed, prompts are padded to a multiple of this, so that the next decoding has the same sizes.

A GPU's kernel adds up 64 or 128 keys at a time. A multiple of 128 keeps an image's keys together in the same way,
however long the prompts beside it are."""

COLUMNS = 512
"""Rounds that are replayed read this many columns of the KV cache, or twice as many, or four times, so that they repeat
and few are captured."""

CAPTURED, GRAPH_BYTES, WORKSPACE_BYTES = 6, 24 * 2**20, 32 * 2**20
"""Sizes of rounds with drafts among so many columns, as a rule; bytes of a captured round; bytes that products need for
their stream. The bytes are figures of others, and nobody has measured them here."""

PREFIX_AT_ONCE = 256
"""Tokens of a prompt or a prefix in a forward in the exact mode. Memory for attention grows with its square."""

NUMBERS_FOR_ONE_THREAD = 3 * 10**7
"""Parameters of the largest decoder that runs on one CPU thread. Threads that wait for each other at every one of many
small products are slowed down many times over by a process that keeps one core busy; large products gain more."""


@dataclass(frozen=True)
class Tables:
    """What forwards look up. rope: rotary tables of the decoder. guidance, grammar: of the :class:`Target`'s methods.

    neighbours: of every token, for LANTERN.
    """

    rope: Rope
    guidance: Tensor | float
    grammar: Tensor | None
    neighbours: Neighbours | None


@dataclass(frozen=True, eq=False)
class Request:
    """What is drawn, from what, and how; see :class:`.decoding.Decoding`.

    prompts: of all rows, the conditional ones of all images first. keys: of the images' noise. prefix: [B, P] tokens
    that every image begins with. Raises AdtError for prompts that are too long, and for a method that needs a drafter
    where there is none.
    """

    target: Target
    prompts: Sequence[EncodedPrompt]
    keys: Sequence[Key]
    prefix: Tensor
    sampling: Sampling
    drafting: Drafting
    drafter: Drafter | None
    lantern: Lantern | None
    check: Check | None

    def __post_init__(self) -> None:
        room = self.target.decoder.config.max_positions - self.target.length
        if self.longest > room:
            name = self.target.name
            raise AdtError(f"Prompt too long: {self.longest} tokens; {name} accepts {room}; shorten it.")
        if self.drafting.policy.needs_drafter and self.drafter is None:
            method = self.drafting.method
            raise AdtError(f"method {method!r} needs a drafter; choose a drafter, or the method 'autoregressive'.")
        if self.sampling.noise == UPSTREAM and self.together <= self._last_index:
            least = self._last_index + 1
            raise AdtError(
                f"`noise_batch` is {self.together}, which is too small for image {least}; use {least} or more."
            )

    @property
    def images(self) -> int:
        return len(self.keys)

    @property
    def _last_index(self) -> int:
        return max(index for _, index in self.keys)

    @property
    def together(self) -> int:
        """Images of a prompt that upstream's script draws at once."""
        return self.sampling.noise_batch or self._last_index + 1

    @property
    def groups(self) -> int:
        """Rows of an image."""
        return len(self.prompts) // self.images

    @property
    def start(self) -> int:
        """Raster position of the first token that is drawn."""
        return self.prefix.shape[1]

    @property
    def replayed(self) -> bool:
        """Are rounds replayed, as on a GPU? On a CPU they are launched piece by piece."""
        return self.target.decoder.embedding.device.type != "cpu"

    @property
    def near(self) -> int | None:
        """Exact mode: how many positions before a token have near keys. None if all do, or if the mode is off."""
        decoder = self.target.decoder
        if not decoder.tile or decoder.fallback is not None and not decoder.fallback.far:
            return None
        return near_window(decoder.embedding.device, decoder.dtype, decoder.config.head_dim)

    @property
    def threads(self) -> int:
        """CPU threads for this work: one where the model is small, for then a busy neighbour hardly slows it down."""
        alone = self.target.decoder.embedding.device.type == "cpu" and self._numbers <= NUMBERS_FOR_ONE_THREAD
        return 1 if alone else torch.get_num_threads()

    @cached_property
    def _numbers(self) -> int:
        """Of the decoder, its head and embedding included."""
        return sum(part.numel() for part in self.target.decoder.parameters())

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts))

    @property
    def padded(self) -> int:
        """Tokens that all prompts are padded to: the slot of raster position 0."""
        return self._padded(self.replayed)

    def _padded(self, replayed: bool) -> int:
        return -(-self.longest // PROMPT_STEP) * PROMPT_STEP if replayed else self.longest

    @cached_property
    def active_drafter(self) -> Drafter | None:
        """What drafts: a network has the window beside it where the policy may choose."""
        policy = self.drafting.policy
        if self.drafter is None or not policy.needs_drafter:
            return None
        return with_window(self.drafter) if policy.chooses else self.drafter

    @property
    def sources(self) -> Sequence[Source]:
        """Ways to draft of the active drafter; none without one."""
        return self.active_drafter.sources if self.active_drafter is not None else ()

    def tables(self) -> Tables:
        """Where the weights are now."""
        decoder, target = self.target.decoder, self.target
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        guidance, grammar = target.guidance(self.sampling.guidance, like), target.grammar(like)
        neighbours = None
        if self.lantern is not None:
            nearest = target.codec.neighbours(self.lantern.neighbours).padded(target.num_tokens)
            neighbours = nearest.to(decoder.embedding.device)
        return Tables(target.rope, guidance, grammar, neighbours)

    @property
    def largest(self) -> Shape:
        return self.cut(self.drafting.policy.largest(self.drafting.settings))

    def cut(self, shape: Shape) -> Shape:
        """The shape without the levels at which the exact mode would not be exact any more."""
        return shape if self.near is None else shape._replace(depth=min(shape.depth, self.near))

    @property
    def uncommitted(self) -> int:
        """Slots of a KV cache that a round may need from its root on."""
        return max(self.largest.nodes + 1, self.active_drafter.uncommitted(self.largest) if self.active_drafter else 1)

    @property
    def cache_length(self) -> int:
        """Of the KV caches: the longest prompt, an image, a tree, and one to spare."""
        return self._cache_length(self.replayed)

    def _cache_length(self, replayed: bool) -> int:
        positions = self._padded(replayed) + self.target.length + self.uncommitted + 1
        return -(-positions // MASK_ALIGNMENT) * MASK_ALIGNMENT

    @property
    def noise_ahead(self) -> int:
        """Positions beyond a root whose noise this round or the next may read."""
        return 3 * self.largest.depth + 6

    def noise_kind(self, like: Tensor) -> Kind:
        """Who makes the noise of all images, for memory of the dtype and device of ``like``."""
        if self.sampling.noise != UPSTREAM:
            return Own(self.target.num_tokens, like)
        kept = Noise.held(self.target.length, self.target.num_tokens, self.noise_ahead) if self.images > 1 else 0
        before = 0 if self.start else self.target.drawn_before  # what is continued stands in the script's prompt
        return Upstream(*self.target.script_row, self.together, self.start, kept, before)

    def noise_told(self) -> dict:
        """What upstream's noise depends on beside the settings, as plain JSON types; nothing for our own."""
        if self.sampling.noise != UPSTREAM:
            return {}
        return {"noise_batch": self.together, "noise_device": maker(self.target.decoder.embedding.device)}

    def plan(self, count: int, drafter: Drafter | None) -> Hashable:
        """What the memory of so many images at work depends on, and what is done in it: where the weights are, too."""
        weights = [self.target.decoder, *([drafter.network] if drafter is not None and drafter.network else [])]
        places = tuple(part.data_ptr() for module in weights for part in (*module.parameters(), *module.buffers()))
        sizes = count, self.groups, self.padded, self.start, self.cache_length, self.target.grid, self.largest
        return sizes, self.target.decoder.fallback, self.recipe.memory(), drafter and drafter.kind, places

    @property
    def recipe(self) -> Recipe:
        """What of the recipe an engine knows."""
        loading = replace(Loading(), **self.target.loaded)
        return Recipe(self.sampling, self.drafting, self.lantern, loading)

    def policy(self, profile: CostProfile | None) -> Policy:
        """A fresh policy. profile: what rounds cost where the weights are now, for a policy that chooses."""
        length, deepest = self.target.length - self.start, self.largest.depth
        scene = Scene(self.target.columns, length, self.keys, self.sources, profile, deepest)
        return self.drafting.policy(self.drafting.settings, scene)

    def settings(self) -> dict:
        """What traces and reports say of the run."""
        device = str(self.target.decoder.embedding.device)
        return {**self.recipe.sections(), "device": device, "noise_version": NOISE_VERSION}

    def memory_required(self, at_once: int, device: torch.device | None = None) -> int:
        """As :meth:`.Decoding.memory_required`, with so many images at work."""
        pixels = self.target.grid[0] * self.target.grid[1] * self.target.downsample**2
        return self.slots_bytes(at_once, device) + self.target.codec.working_bytes(pixels)

    def slots_bytes(self, at_once: int, device: torch.device | None = None) -> int:
        """The same without the codec's work: what slots and their graphs take."""
        graphs = self._forward_bytes(at_once, device) + self._captured_bytes if self._replayed_on(device) else 0
        return self.state_bytes(at_once, device) + graphs

    def _replayed_on(self, device: torch.device | None) -> bool:
        """Are rounds replayed there, or where the weights are now?"""
        return self.replayed if device is None else device.type != "cpu"

    @property
    def _captured_bytes(self) -> int:
        """Bytes of graphs beside their activations."""
        lengths = 1 + (-(-self.cache_length // COLUMNS) - 1).bit_length()
        sizes = 1 if self.active_drafter is None else CAPTURED
        return WORKSPACE_BYTES + min(sizes * lengths, MAX_GRAPHS) * GRAPH_BYTES

    def state_bytes(self, at_once: int, device: torch.device | None = None) -> int:
        """The same without graphs: caches, noise, and the largest forward."""
        target, decoder, cache_length = self.target, self.target.decoder, self._cache_length(self._replayed_on(device))
        config, itemsize = decoder.config, decoder.embedding.element_size()
        rows, held = self.groups * at_once, min(2 * at_once, self.images)  # images that enter meet those that leave
        drafting = (
            self.active_drafter.cache_bytes(self.groups * held, cache_length, itemsize) if self.active_drafter else 0
        )
        caches = KVCache.num_bytes(config, rows, cache_length, itemsize) + drafting
        shared = self.together if self.sampling.noise == UPSTREAM and self.images > 1 else 0
        wide = decoder.wide_dtype.itemsize
        noise = Noise.num_bytes(held + shared, target.length, target.num_tokens, self.noise_ahead, wide)
        return caches + noise + self._forward_bytes(at_once, device)

    def _forward_bytes(self, at_once: int, device: torch.device | None) -> int:
        """Bytes of the activations of the largest forward, and of a matrix that is converted."""
        target, decoder, config = self.target, self.target.decoder, self.target.decoder.config
        rows, replayed = self.groups * at_once, self._replayed_on(device)
        cache_length, prompt = self._cache_length(replayed), self._padded(replayed) + self.start
        tokens = max(prompt, self.largest.nodes + 1)
        numbers = 2 * config.intermediate_size + 8 * config.hidden_size + cache_length + target.num_codes
        where, matrix = device or decoder.embedding.device, decoder.layers[0].get_parameter("gate_up")
        on_gpu = decoder.weights is not None and where.type == "cuda"
        converts = on_gpu and not supports_byte_matmul(where, matrix.dtype)
        near = self._near_bytes(cache_length, prompt, where)
        return decoder.wide_dtype.itemsize * rows * tokens * numbers + rows * near + 2 * converts * matrix.numel()

    def _near_bytes(self, cache_length: int, prompt: int, where: torch.device) -> int:
        """Bytes of a row's attention to near keys, in float64: keys and values, and three tables of scores."""
        decoder, config = self.target.decoder, self.target.decoder.config
        if not decoder.tile:
            return 0
        stays = where.type == decoder.embedding.device.type
        near = self.near if stays else near_window(where, decoder.dtype, config.head_dim)
        read = self.start if near is not None else prompt
        tokens = max(self.largest.nodes + 1, min(read, PREFIX_AT_ONCE))
        width = cache_length if near is None else near + tokens
        return 8 * width * (2 * config.num_kv_heads * config.head_dim + 3 * config.num_heads * tokens)


def rows_of(
    prompts: Sequence[EncodedPrompt], negatives: Sequence[EncodedPrompt] | None, target: Target
) -> Sequence[EncodedPrompt]:
    """The prompts, and the rows that guidance pushes away from; those without text where none are given."""
    if negatives is not None and len(negatives) != len(prompts):
        given = f"{len(negatives)} negative prompts were given for {len(prompts)} prompts"
        raise AdtError(f"{given}; give one for each, or none.")
    return [*prompts, *(map(target.unconditional, prompts) if negatives is None else negatives)]


def prefix_tokens(prefix: Tensor | None, images: int, target: Target) -> Tensor:
    """The tokens [B, n] of a prefix's codes, ends of whole rows included. Raises AdtError for a wrong prefix."""
    if prefix is None:
        return torch.empty(images, 0, dtype=torch.long)
    room = target.num_cells
    if prefix.ndim != 2 or len(prefix) != images or prefix.shape[1] > room:
        shape = list(prefix.shape)
        raise AdtError(f"prefix has the shape {shape}; it must be [{images} images, at most {room} codes].")
    if prefix.numel():
        low, high = int(prefix.min()), int(prefix.max())
        if low < 0 or high >= target.num_codes:
            most = target.num_codes - 1
            raise AdtError(f"prefix has codes from {low} to {high}, but {target.name} has only codes 0 to {most}.")
    return target.tokens(prefix.cpu())
