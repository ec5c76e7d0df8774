"""A request: one batch of images to decode with a job, and the sizes that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..drafters import Drafter
from ..drafters.table import with_window
from ..errors import AdtError, Check
from ..models.batch_invariance import MASK_ALIGNMENT, near_window
from ..models.target import EncodedPrompt, Target
from ..policies import Context, CostProfile, Drafting, DraftMode, Shape
from ..policies.recipe import Recipe
from ..rules.noise import NOISE_VERSION, Key
from ..rules.settings import UPSTREAM, Lantern, Sampling
from ..rules.upstream import noise_device
from .job import Job

PROMPT_MULTIPLE = 128
"""Where rounds are replayed, prompts are padded to a multiple of this length.

The next batch then often has the same sizes, so that its rounds need not be captured. GPU kernels add up 64 or 128
keys at a time, so a multiple of 128 groups an image's keys alike whatever other prompts are in its batch.
"""
ATTENDED_MULTIPLE = 512
"""Replayed rounds attend to this many cache positions, or 2, 4, ... times as many, so that few rounds are captured."""
PREFIX_CHUNK = 256
"""Batch-invariant mode: tokens of a prompt or prefix in one forward, whose attention needs memory by their square."""
MAX_ONE_THREAD_PARAMETERS = 3 * 10**7
"""Decoders with at most this many parameters run on one CPU thread.

Their many small products would wait for all threads, and one busy core would slow down each of them. Larger products
gain more from threads than they lose.
"""


@dataclass(frozen=True, eq=False)
class Request:
    """One batch of images to decode.

    Attributes:
        job: Recipe and loaded models.
        prompts: BatchRows of all images: first the conditional rows, then with guidance the unconditional ones.
        keys: (seed, index among the images of its prompt) of each image's noise.
        prefix: [B, P] int64 tokens that the images begin with.
        check: Called often; may raise an exception to cancel.

    Raises:
        AdtError: If a prompt is too long, or the job lacks a drafter that its method needs.
    """

    job: Job
    prompts: Sequence[EncodedPrompt]
    keys: Sequence[Key]
    prefix: Tensor
    check: Check | None = None

    @classmethod
    def of(
        cls,
        job: Job,
        prompts: Sequence[str],
        *,
        image_indices: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        prefix: Tensor | None = None,
        check: Check | None = None,
    ) -> Request:
        """Make a request from texts.

        Args:
            job: Recipe and loaded models.
            prompts: Text of each image, without the recipe's suffix.
            image_indices: Index of each image among the images of its prompt (default: 0).
            seeds: Seed of each image (default: the recipe's).
            prefix: Codes [B, P] of the first cells of each image, which are kept (default: the recipe's).
            check: Called often; may raise an exception to cancel.
        """
        if prefix is None:
            prefix = torch.tensor([job.recipe.kept] * len(prompts), dtype=torch.long)
        negative = job.encode_negative()
        negatives = [negative] * len(prompts) if negative is not None else None
        return cls.of_rows(job, job.encode(prompts), negatives, image_indices, seeds, prefix, check)

    @classmethod
    def of_rows(
        cls,
        job: Job,
        prompts: Sequence[EncodedPrompt],
        negatives: Sequence[EncodedPrompt] | None = None,
        image_indices: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        prefix: Tensor | None = None,
        check: Check | None = None,
    ) -> Request:
        """Make a request from encoded prompts.

        Args:
            job: Recipe and loaded models.
            prompts: Conditional row of each image.
            negatives: BatchRows that guidance pushes away from (default: the model's rows without text).
            image_indices: Index of each image among the images of its prompt (default: 0).
            seeds: Seed of each image (default: the recipe's).
            prefix: Codes [B, P] of the first cells of each image, which are kept (default: none).
            check: Called often; may raise an exception to cancel.

        Raises:
            AdtError: If there are no prompts, or arguments contradict each other.
        """
        if not prompts:
            raise AdtError("batch size is 0; it must be 1 or more.")
        sampling = job.recipe.sampling
        images = len(prompts)
        rows = _with_negatives(prompts, negatives, job.target) if sampling.guidance != 1 else prompts
        indices = image_indices if image_indices is not None else [0] * images
        keys = list(zip(seeds if seeds is not None else [sampling.seed] * images, indices, strict=True))
        return cls(job, rows, keys, _prefix_tokens(prefix, images, job.target), check)

    def __post_init__(self) -> None:
        most = self.target.decoder.config.max_positions - self.target.length
        if self.longest > most:
            raise AdtError(f"Prompt too long: {self.longest} tokens; {self.target.name} accepts {most}; shorten it.")
        if self.drafting.policy.needs_drafter and self.job.drafter is None:
            method = self.drafting.method
            raise AdtError(f"method {method!r} needs a drafter; choose a drafter, or the method 'autoregressive'.")
        if self.sampling.noise == UPSTREAM and self.script_batch <= self._last_index:
            least = self._last_index + 1
            raise AdtError(
                f"`noise_batch` is {self.script_batch}, which is too small for image {least}; use {least} or more."
            )

    @property
    def target(self) -> Target:
        return self.job.target

    @property
    def sampling(self) -> Sampling:
        return self.job.recipe.sampling

    @property
    def drafting(self) -> Drafting:
        return self.job.recipe.drafting

    @property
    def lantern(self) -> Lantern | None:
        return self.job.recipe.lantern

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the loading settings that the target reports."""
        return self.job.loaded

    @cached_property
    def active_drafter(self) -> Drafter | None:
        """The drafter, or None if the method does not draft. A policy that chooses gets a network with the window."""
        policy = self.drafting.policy
        if self.job.drafter is None or not policy.needs_drafter:
            return None
        return with_window(self.job.drafter) if policy.chooses else self.job.drafter

    @property
    def modes(self) -> Sequence[DraftMode]:
        """Draft modes of the active drafter; none without one."""
        return self.active_drafter.modes if self.active_drafter is not None else ()

    @property
    def images(self) -> int:
        return len(self.keys)

    @property
    def groups(self) -> int:
        """Number of rows of an image: 2 with guidance, else 1."""
        return len(self.prompts) // self.images

    @property
    def start(self) -> int:
        """Raster position of the first token to decode."""
        return self.prefix.shape[1]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts))

    @property
    def padded(self) -> int:
        """Tokens that all prompts are padded to, which is the cache position of raster position 0."""
        return self.padded_on(self.replayed)

    def padded_on(self, replayed: bool) -> int:
        """Return `padded` for a device that replays rounds, or for one that does not."""
        return -(-self.longest // PROMPT_MULTIPLE) * PROMPT_MULTIPLE if replayed else self.longest

    @property
    def cache_length(self) -> int:
        """Positions of the KV caches: the longest prompt, an image, a draft tree, and one spare position."""
        return self.cache_length_on(self.replayed)

    def cache_length_on(self, replayed: bool) -> int:
        """Return `cache_length` for a device that replays rounds, or for one that does not."""
        return (
            -(-(self.padded_on(replayed) + self.target.length + self.uncommitted + 1) // MASK_ALIGNMENT)
            * MASK_ALIGNMENT
        )

    @property
    def uncommitted(self) -> int:
        """Positions of a KV cache that a round may write, from its root on."""
        drafter = self.active_drafter.uncommitted(self.largest) if self.active_drafter else 1
        return max(self.largest.nodes + 1, drafter)

    @property
    def largest(self) -> Shape:
        """Largest draft tree of the method."""
        return self.cut(self.drafting.policy.largest(self.drafting.settings))

    def cut(self, shape: Shape) -> Shape:
        """Return a shape without the levels that batch-invariant attention could not compute exactly."""
        return shape if self.near is None else shape._replace(depth=min(shape.depth, self.near))

    @property
    def noise_ahead(self) -> int:
        """Positions after a root whose noise this round or the next may read."""
        return 3 * self.largest.depth + 6

    @property
    def replayed(self) -> bool:
        """Whether rounds are captured and replayed, as on a GPU. On a CPU each operation is launched."""
        return self.target.decoder.embedding.device.type != "cpu"

    @property
    def near(self) -> int | None:
        """Batch-invariant mode: distance up to which keys are near. None if all are, or if the mode is off."""
        decoder = self.target.decoder
        if not decoder.tile or decoder.fallback is not None and not decoder.fallback.far:
            return None
        return near_window(decoder.embedding.device, decoder.dtype, decoder.config.head_dim)

    @property
    def threads(self) -> int:
        """CPU threads of forwards: one for small models, which a busy neighbour then hardly slows down."""
        on_cpu = self.target.decoder.embedding.device.type == "cpu"
        return 1 if on_cpu and self._parameters <= MAX_ONE_THREAD_PARAMETERS else torch.get_num_threads()

    @cached_property
    def _parameters(self) -> int:
        return sum(part.numel() for part in self.target.decoder.parameters())

    def context(self, profile: CostProfile | None = None) -> Context:
        """Return what drafters and policies may see of this request.

        Args:
            profile: Cost profile of the device, for a policy that chooses draft modes.
        """
        return Context(
            target=self.target,
            sampling=self.sampling,
            settings=self.drafting.settings,
            largest=self.largest,
            keys=self.keys,
            start=self.start,
            modes=self.modes,
            profile=profile,
            replayed=self.replayed,
        )

    @property
    def _last_index(self) -> int:
        return max(index for _, index in self.keys)

    @property
    def script_batch(self) -> int:
        """Images of a prompt that the model's original script draws together."""
        return self.sampling.noise_batch or self._last_index + 1

    def noise_settings(self) -> dict:
        """Return what the original script's noise depends on in addition to the recipe; {} for our own noise."""
        if self.sampling.noise != UPSTREAM:
            return {}
        return {"noise_batch": self.script_batch, "noise_device": noise_device(self.target.decoder.embedding.device)}

    def settings(self) -> dict:
        """Return the settings for traces and reports, as plain JSON types."""
        return self.recipe.sections() | {
            "device": str(self.target.decoder.embedding.device),
            "noise_version": NOISE_VERSION,
        }


def _with_negatives(
    prompts: Sequence[EncodedPrompt], negatives: Sequence[EncodedPrompt] | None, target: Target
) -> Sequence[EncodedPrompt]:
    """Return the prompts, then the rows that guidance pushes away from."""
    if negatives is None:
        return [*prompts, *map(target.unconditional, prompts)]
    if len(negatives) != len(prompts):
        given = f"{len(negatives)} negative prompts were given for {len(prompts)} prompts"
        raise AdtError(f"{given}; give one for each, or none.")
    return [*prompts, *negatives]


def _prefix_tokens(prefix: Tensor | None, images: int, target: Target) -> Tensor:
    """Return the tokens [B, n] of a prefix's codes [B, P], with the tokens that end complete rows."""
    if prefix is None:
        return torch.empty(images, 0, dtype=torch.long)
    most = target.num_cells
    if prefix.ndim != 2 or len(prefix) != images or prefix.shape[1] > most:
        shape = list(prefix.shape)
        raise AdtError(f"prefix has the shape {shape}; it must be [{images} images, at most {most} codes].")
    if prefix.numel():
        low = int(prefix.min())
        high = int(prefix.max())
        if low < 0 or high >= target.num_codes:
            last = target.num_codes - 1
            raise AdtError(f"prefix has codes from {low} to {high}, but {target.name} has only codes 0 to {last}.")
    return target.tokens(prefix.cpu())
