"""A request: one batch of images to decode, and the tensor sizes that decoding needs.

On a GPU, rounds are *replayed*: a round is captured once as a CUDA graph, and later rounds replay this graph. On a CPU,
rounds are executed without capture. Batch-invariant mode distinguishes near and far attention keys
(:mod:`..models.batch_invariance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..drafters import Drafter
from ..drafters.load import with_window
from ..errors import AdtError, Check
from ..models.batch_invariance import MASK_ALIGNMENT, near_window
from ..models.target import EncodedPrompt, Target
from ..models.torch_state import own_torch_state
from ..policies import Context, CostProfile, Drafting, DraftMode, Shape
from ..recipe import Recipe
from ..rules.noise import Key
from ..rules.script_noise import noise_device
from ..settings import ORIGINAL_SCRIPT, Lantern, Sampling
from ..version import FORMAT
from .kept import KeptTokens

PROMPT_MULTIPLE = 128
"""If rounds are replayed, prompts are padded to a multiple of this number of tokens. Two batches with similar prompts
then have the same tensor sizes, so the second batch can replay captured rounds. Also, GPU kernels add up attention keys
in groups of 64 or 128: with this padding, the keys of an image are in the same groups, no matter how long the other
prompts are."""
ATTENDED_MULTIPLE = 512
"""A replayed round reads this number of cache positions, or 2, 4, 8, ... times this number. Each number of positions
needs its own captured graph, so there should be few of them."""
PREFIX_CHUNK = 256
"""Maximum number of tokens of a prompt or prefix in one forward pass, in batch-invariant mode. The memory for attention
grows with the square of this number."""
MAX_ONE_THREAD_PARAMETERS = 3 * 10**7
"""Decoders with at most this number of parameters run on one CPU thread, unless other cores are idle. Their matrix
products are small: each ends when its slowest thread ends, so one busy core slows down every product."""


@dataclass(frozen=True, eq=False)
class Request:
    """One batch of images to decode.

    Attributes:
        prompts: Encoded prompts of all images; with guidance, followed by the negative prompts of all images.
        keys: Key of each image's noise: the seed of the image, and its index among the images of its prompt.
        kept: Tokens of the images that are given and not generated.
        drafter: Drafter. Every method except plain decoding needs one.
        check: Called often; may raise an exception to cancel.

    Raises:
        AdtError: If a prompt is too long, a necessary drafter is missing, or the noise batch is too small.
    """

    target: Target
    recipe: Recipe
    prompts: Sequence[EncodedPrompt]
    keys: Sequence[Key]
    kept: KeptTokens
    drafter: Drafter | None = None
    check: Check | None = None

    @classmethod
    @own_torch_state()
    def of(
        cls,
        target: Target,
        recipe: Recipe,
        prompts: Sequence[EncodedPrompt],
        drafter: Drafter | None = None,
        *,
        negatives: Sequence[EncodedPrompt] | None = None,
        image_indices: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        kept: Tensor | None = None,
        check: Check | None = None,
    ) -> Request:
        """Make a request with one prompt per image.

        Args:
            recipe: Settings of the images. Its texts and its kept codes are not used.
            negatives: Encoded negative prompt of each image, for guidance (default: the model's prompt without text).
            image_indices: Index of each image among the images of its prompt (default: 0).
            seeds: Seed of each image (default: the seed in the recipe).
            kept: [B, P], codes of the first P cells of each image; -1 for cells to generate (default: all).

        Raises:
            AdtError: If there are no prompts, or arguments contradict each other.
        """
        if not prompts:
            raise AdtError("batch_size.too_small", batch_size=0)
        images = len(prompts)
        if negatives is not None and len(negatives) != images:
            raise AdtError("request.lengths", count=len(negatives), images=images)
        rows = [*prompts]
        if recipe.sampling.guided:
            rows += map(target.unconditional, prompts) if negatives is None else negatives
        indices = image_indices if image_indices is not None else [0] * images
        keys = list(zip(seeds if seeds is not None else [recipe.sampling.seed] * images, indices, strict=True))
        return cls(target, recipe, rows, keys, KeptTokens.of(kept, images, target), drafter, check)

    def __post_init__(self) -> None:
        most = self.target.decoder.config.max_positions - self.target.length
        if self.longest > most:
            raise AdtError("prompt.too_long", tokens=self.longest, model=self.target.name, limit=most)
        if self.drafting.policy.needs_drafter and self.drafter is None:
            method = self.drafting.method
            raise AdtError("method.needs_drafter", method=method)
        if self.sampling.noise == ORIGINAL_SCRIPT and self.script_batch <= self._last_index:
            least = self._last_index + 1
            raise AdtError("noise_batch.too_small", value=self.script_batch, least=least)

    @property
    def sampling(self) -> Sampling:
        return self.recipe.sampling

    @property
    def drafting(self) -> Drafting:
        return self.recipe.drafting

    @property
    def lantern(self) -> Lantern | None:
        return self.recipe.lantern

    @property
    def loaded(self) -> Recipe:
        """The recipe, with the loading settings (such as the dtype) that were actually used for the target."""
        return self.recipe.as_loaded(self.target.loaded)

    @property
    def networks(self) -> list[nn.Module]:
        """The target's decoder, and the drafter's network if it has one."""
        network = None if self.drafter is None else self.drafter.network
        return [self.target.decoder] if network is None else [self.target.decoder, network]

    @cached_property
    def active_drafter(self) -> Drafter | None:
        """The drafter, with the Jacobi window added if the policy chooses modes; None if the method does not draft."""
        policy = self.drafting.policy
        if self.drafter is None or not policy.needs_drafter:
            return None
        return with_window(self.drafter) if policy.chooses else self.drafter

    @property
    def modes(self) -> Sequence[DraftMode]:
        """Draft modes of the active drafter; empty without a drafter."""
        return self.active_drafter.modes if self.active_drafter is not None else ()

    @property
    def images(self) -> int:
        return len(self.keys)

    @property
    def groups(self) -> int:
        """Number of batch rows of each image: 2 with guidance, else 1."""
        return len(self.prompts) // self.images

    @property
    def start(self) -> int:
        """Raster position of the first token to decode."""
        return self.kept.start

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest prompt."""
        return max(map(len, self.prompts))

    @property
    def padded(self) -> int:
        """Number of tokens to which each prompt is padded. It is also the cache position of the first image token."""
        return self.padded_on(self.replayed)

    def padded_on(self, replayed: bool) -> int:
        """Return `padded` for a device that replays rounds (True), or for a device that does not (False)."""
        return -(-self.longest // PROMPT_MULTIPLE) * PROMPT_MULTIPLE if replayed else self.longest

    @property
    def cache_length(self) -> int:
        """Number of positions of the KV caches: padded prompt, image, draft tree and a spare position, rounded up."""
        return self.cache_length_on(self.replayed)

    def cache_length_on(self, replayed: bool) -> int:
        """Return `cache_length` for a device that replays rounds (True), or for a device that does not (False)."""
        return (
            -(-(self.padded_on(replayed) + self.target.length + self.uncommitted + 1) // MASK_ALIGNMENT)
            * MASK_ALIGNMENT
        )

    @property
    def uncommitted(self) -> int:
        """Maximum number of cache positions that a round writes. The position of the root is included."""
        drafter = self.active_drafter.uncommitted(self.largest) if self.active_drafter else 1
        return max(self.largest.drafts + 1, drafter, self.longest_read)

    @property
    def longest_read(self) -> int:
        """Largest number of tokens that a plain round reads per image: the root and a run of kept tokens."""
        return self.read_size(self.kept.longest_run)

    def read_size(self, run: int) -> int:
        """Return the number of tokens per image that a plain round reads, if the longest run has `run` kept tokens.

        If rounds are replayed, it is a power of 2, because each number needs its own captured graph.
        """
        return 1 << run.bit_length() if self.replayed else run + 1

    @property
    def largest(self) -> Shape:
        """Size of the largest draft tree of the method."""
        policy = self.drafting.policy
        largest = policy.largest if self.target.decoder.stream is None else policy.largest_streamed
        return self.cut(largest(self.drafting.settings))

    def cut(self, shape: Shape) -> Shape:
        """Limit the depth of a shape to `near`; return it unchanged if `near` is None."""
        return shape if self.near is None else shape._replace(depth=min(shape.depth, self.near))

    @property
    def noise_ahead(self) -> int:
        """Number of positions after the root at which the current round or the next round may read noise."""
        return 3 * self.largest.depth + 6

    @property
    def replayed(self) -> bool:
        """True if rounds are captured and replayed. This is the case on all devices except CPUs."""
        return self.target.decoder.embedding.device.type != "cpu"

    @property
    def near(self) -> int | None:
        """Number of positions with near keys before a token; None if all keys are near or the mode is off."""
        decoder = self.target.decoder
        if not decoder.tile or decoder.fallback is not None and not decoder.fallback.far:
            return None
        return near_window(decoder.embedding.device, decoder.dtype, decoder.config.head_dim)

    @property
    def threads(self) -> int:
        """Minimum number of CPU threads: 1 for a small model on a CPU (`MAX_ONE_THREAD_PARAMETERS`)."""
        decoder = self.target.decoder
        on_cpu = decoder.embedding.device.type == "cpu"
        is_small = on_cpu and sum(part.numel() for part in decoder.parameters()) <= MAX_ONE_THREAD_PARAMETERS
        return 1 if is_small else torch.get_num_threads()

    def context(self, profile: CostProfile | None = None) -> Context:
        """Return the data that drafters and policies may use; see :class:`Context` for the profile."""
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
        """Number of images of one prompt that the model's original script generates in one batch."""
        return self.sampling.noise_batch or self._last_index + 1

    def noise_settings(self) -> dict:
        """Return the settings that only the noise of the original script needs; {} with this package's own noise."""
        if self.sampling.noise != ORIGINAL_SCRIPT:
            return {}
        return {"noise_batch": self.script_batch, "noise_device": noise_device(self.target.decoder.embedding.device)}

    def settings(self) -> dict:
        """Return the settings for traces and reports, as plain JSON types."""
        return self.loaded.sections() | {"device": str(self.target.decoder.embedding.device), "format": FORMAT}
