"""The round loop: draft, verify, accept. Plain loops over a :class:`Decoding` give progress, preview and cancel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ..drafters import Drafter, Shapes
from ..drafters.table import sources
from ..errors import AdtError, Check
from ..models.layers import rope_tables
from ..models.target import Prompt, Target
from ..policies import NO_DRAFTS, Drafting, Lane, Scene, Shape
from ..rules.sampling import NOISE_VERSION, Sampling
from ..rules.trace import ImageRound, Round, Trace
from ..rules.verify import Lantern
from .entering import Entrance, ImageQueue
from .lanes import Lanes, Result, Shared, check_tree, plain_round, plain_step, read_results, settle
from .memory import caches_and_noise, forward_bytes


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over it once; each step yields a :class:`Round`. ``codes`` [B, T] int64 on the CPU holds the tokens that are
    decided so far, -1 elsewhere. Same seed, any method: same codes (up to floating-point near ties).

    prompts: each image's conditional row. negatives: the rows that guidance pushes away from; None for those
    without text. drafter: needed by every method but plain decoding. lantern: relaxed acceptance, which changes the
    image; None for the exact one. image_indices: index of each image within its prompt's batch, part of the noise key.
    prefix: codes [B, P] of the first P cells of each image, which are kept. What follows is drawn with the noise of
    its own position, so a prefix of the seed's own image leads to that image. at_once: how many images are drawn at
    the same time, if not all: when one is finished, the next takes its place. check: called often; may raise to
    cancel. Raises AdtError for settings that don't fit together.
    """

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Prompt],
        *,
        negatives: Sequence[Prompt] | None = None,
        sampling: Sampling = Sampling(),
        drafting: Drafting = Drafting(),
        drafter: Drafter | None = None,
        lantern: Lantern | None = None,
        image_indices: Sequence[int] | None = None,
        prefix: Tensor | None = None,
        at_once: int | None = None,
        check: Check | None = None,
    ):
        self.images, self.length = len(prompts), target.length
        self.at_once = min(at_once or self.images, self.images)
        _refuse(prompts, negatives, drafting, drafter, at_once)
        self.target, self.sampling, self.drafting, self.lantern = target, sampling, drafting, lantern
        self._check = check
        self._indices = list(image_indices) if image_indices is not None else [0] * self.images
        self._prompts = list(prompts)  # of all rows, the conditional ones first
        if sampling.guidance != 1:
            self._prompts += negatives or [target.unconditional(prompt) for prompt in prompts]
        self._longest = max(map(len, self._prompts))
        room = target.decoder.config.max_positions - self.length
        if self._longest > room:
            raise AdtError(f"prompt is {self._longest} tokens long, and {target.name} has room for {room}; shorten it.")
        self.codes = torch.full((self.images, self.length), -1)
        self.start = 0 if prefix is None else self._enter_prefix(prefix)
        self._set_up_drafting(drafter)
        self.trace = Trace(self._settings(), target.grid, self.images, start=self.start, row_end=target.row_end)
        self._queue: ImageQueue | None = None
        self._substituted = [0] * self.images

    def _enter_prefix(self, prefix: Tensor) -> int:
        """Enter the codes that are kept. Returns how many tokens each image has of them."""
        if prefix.ndim != 2 or len(prefix) != self.images or prefix.shape[1] > self.length:
            shape = list(prefix.shape)
            raise AdtError(
                f"prefix has the shape {shape}; it must be [{self.images} images, at most {self.length} codes]."
            )
        if prefix.numel() and not 0 <= int(prefix.min()) <= int(prefix.max()) < self.target.num_codes:
            raise AdtError(
                f"prefix holds codes from {int(prefix.min())} to {int(prefix.max())}; {self.target.name} has the "
                f"codes 0 to {self.target.num_codes - 1}."
            )
        tokens = self.target.tokens(prefix.cpu())
        self.codes[:, : tokens.shape[1]] = tokens
        return tokens.shape[1]

    def _settings(self) -> dict:
        """What the trace says of the run."""
        decoder = self.target.decoder
        return {
            "method": self.drafting.method,
            "proposal": self.drafting.proposal,
            "seed": self.sampling.seed,
            "device": str(decoder.embedding.device),
            "dtype": str(decoder.dtype).removeprefix("torch."),
            "weights": decoder.weights,
            "noise_version": NOISE_VERSION,
            "sampling": asdict(self.sampling),
            "drafting": self.drafting.flat(),
            "lantern": self.lantern and asdict(self.lantern),
        }

    def _set_up_drafting(self, drafter: Drafter | None) -> None:
        """What may draft, what chooses how large trees are, and the room that they need in the cache."""
        policy, decoder = self.drafting.policy, self.target.decoder
        self._sources: tuple[Drafter, ...] = ()
        if drafter is not None and policy.needs_drafter:
            self._sources = sources(drafter) if policy.many_sources else (drafter,)
        sampling = replace(self.sampling, seed=0)
        where = decoder.embedding.device, decoder.embedding.dtype
        scene = Scene(
            columns=self.target.columns,
            length=self.length - self.start,
            seed=self.sampling.seed,
            image_indices=self._indices,
            source_widths=[source.most_candidates for source in self._sources],
            owner=drafter,
            conditions=(
                len(self._prompts),
                self.images,
                sampling,
                self.drafting.proposal,
                self.lantern,
                self.start,
                where,
            ),
        )
        self._policy = policy(self.drafting.settings, scene)
        self._largest = policy.largest(self.drafting.settings)
        drafts = max(self._largest.nodes + 1, *(source.slots(self._largest) for source in self._sources), 1)
        self._slots = self._longest + self.length + drafts + 1

    # ---- what callers read -----------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        return self.images * self.length

    @property
    def done_tokens(self) -> int:
        return int((self.codes >= 0).sum())

    @property
    def at_work(self) -> list[int]:
        """Numbers of the images at work."""
        lanes = self._queue and self._queue.lanes
        return list(lanes.images) if lanes else []

    def grid_codes(self) -> Tensor:
        """Codes as [B, rows, columns] int64."""
        return self.target.cells(self.codes)

    def memory_required(self) -> int:
        """Bytes of KV caches, noise, the largest activations of a forward, and the codec at work on an image."""
        groups = len(self._prompts) // self.images
        held = min(2 * self.at_once, self.images)  # images that enter and images that leave meet
        tokens = max(self._longest + self.start, self._largest.nodes + 1)
        need = caches_and_noise(self.target, groups, self.at_once, held, self._slots, self._sources)
        return need + forward_bytes(self.target, groups * self.at_once, tokens, self._slots)

    # ---- images enter and leave ------------------------------------------------------------

    def __iter__(self) -> Iterator[Round]:
        if self.start == self.length:
            return
        self._queue = queue = self._begin()
        try:
            while (round := self._next(queue)) is not None:
                self.trace.rounds.append(round)
                yield round
        finally:
            self._queue = None
            queue.lanes = None  # caches and graphs go with the run

    @torch.inference_mode()
    def _begin(self) -> ImageQueue:
        """Make what all images share, and let them queue up."""
        target, decoder = self.target, self.target.decoder
        device = decoder.embedding.device
        self.trace.settings["device"] = str(device)  # ComfyUI may have moved the weights since
        grammar = target.grammar(torch.empty(0, dtype=decoder.wide_dtype, device=device))
        neighbours = None
        if self.lantern is not None:
            neighbours = target.codec.neighbours(self.lantern.neighbours).padded(target.num_tokens).to(device)
        rope = rope_tables(decoder.config, decoder.embedding)
        self._shared = Shared(target, self.sampling, rope, grammar, self.lantern, neighbours, self._check)
        kept = self.codes[:, : self.start].clone()
        entrance = Entrance(
            self._shared, self._prompts, self._indices, kept, self._longest, self._slots, self.drafting, self._largest
        )
        return ImageQueue(entrance, self._policy, self._sources, self.images, self.at_once, self._entered)

    def _next(self, queue: ImageQueue) -> Round | None:
        """The next round; None when all images are finished."""
        while True:
            lanes = None  # so that nothing here holds on to what is in memory
            try:
                if (lanes := queue.refill()) is None:
                    return None
                if self._check is not None:
                    self._check()
                return self._round(lanes)
            except torch.cuda.OutOfMemoryError:
                if self.at_once == 1:
                    raise
            self._halve(queue)  # out here, where the error no longer holds on to it either

    def _halve(self, queue: ImageQueue) -> None:
        """Memory ran out: what is not finished starts again, half as many images at once."""
        self.at_once //= 2
        unfinished = [image for image in range(self.images) if self.codes[image, -1] < 0]
        queue.restart(unfinished, self.at_once)
        self.codes[unfinished, self.start :] = -1
        self._substituted = [0 if image in unfinished else count for image, count in enumerate(self._substituted)]
        self.trace.forget(unfinished)
        images = f"{self.at_once} images" if self.at_once > 1 else "one image"
        logging.getLogger(__name__).warning("Out of memory; going on with %s at once.", images)

    def _entered(self, lanes: Lanes, seconds: float) -> None:
        """Images have begun: their first token is drawn."""
        self.codes[lanes.images, self.start] = lanes.roots.codes.cpu()
        self.trace.entered(lanes.images, seconds)

    # ---- rounds ----------------------------------------------------------------------------

    @torch.inference_mode()
    def _round(self, lanes: Lanes) -> Round:
        """One target forward. Inference mode ends with it: a generator must not leave it on between rounds."""
        began, proposer = time.perf_counter(), lanes.proposer
        plain_seconds = self._time_plain_steps(lanes) if proposer is not None else ()
        started = time.perf_counter()
        shapes = self._shapes(lanes)
        forwards_before = proposer.forwards if proposer is not None else 0
        tree = None
        if proposer is not None and any(shape.depth for shape in shapes):
            tree = proposer.propose(lanes.roots, Shapes(shapes, lanes.rows.device))
        drafted = time.perf_counter()
        if tree is None:
            results = plain_round(self._shared, lanes, shapes)
        else:
            width = max(shape.width for shape in shapes)
            checked = check_tree(self._shared, lanes, tree, width, self._allowed(lanes))
            results = read_results(lanes, checked, shapes)
            settle(lanes, checked, results)
        shares = self._enter_codes(results)  # last, when no memory is asked for any more: a round counts as a whole
        forwards = (proposer.forwards if proposer is not None else 0) - forwards_before
        seconds = time.perf_counter() - began
        round = Round(len(self.trace.rounds), seconds, drafted - started, forwards, tuple(shares), plain_seconds)
        if proposer is not None:
            self._policy.observe(round)
            if not self._policy.drafts:
                lanes.proposer = None  # what nobody drafts with need not be kept up to date
        return round

    def _enter_codes(self, results: list[Result]) -> list[ImageRound]:
        """Write down the codes that a round has emitted."""
        for share, _, codes in results:
            first = share.position + 1
            self.codes[share.image, first : first + len(codes)] = torch.tensor(codes)
            self._substituted[share.image] += share.substituted
        return [result.share for result in results]

    def _shapes(self, lanes: Lanes) -> list[Shape]:
        """The policy's choice, cut so that the last draft of an image still leaves one token to emit."""
        if lanes.proposer is None:
            return [NO_DRAFTS] * len(lanes)
        at_work = [Lane(image, position) for image, position in zip(lanes.images, lanes.roots.positions)]
        rooms = [self.length - 2 - lane.position for lane in at_work]
        return [
            shape._replace(depth=min(shape.depth, room)) if room > 0 else NO_DRAFTS
            for shape, room in zip(self._policy.choose(at_work), rooms)
        ]

    def _allowed(self, lanes: Lanes) -> list[int]:
        """Substitutions that every image may still make; none without LANTERN."""
        if self.lantern is None:
            return []
        emitted = [position + 1 - self.start for position in lanes.roots.positions]
        return [self.lantern.allowed(count, self._substituted[image]) for count, image in zip(emitted, lanes.images)]

    def _time_plain_steps(self, lanes: Lanes) -> tuple[float, ...]:
        """Seconds of the plain steps that the policy asks for. They decide nothing: the round reads the roots again."""
        found = []
        for _ in range(self._policy.plain_steps):
            started = time.perf_counter()
            plain_step(self._shared, lanes).tolist()
            found.append(time.perf_counter() - started)
        return tuple(found)


def _refuse(
    prompts: Sequence[Prompt],
    negatives: Sequence[Prompt] | None,
    drafting: Drafting,
    drafter: Drafter | None,
    at_once: int | None,
) -> None:
    """Raises AdtError for arguments of a decoding that don't fit together."""
    if not prompts:
        raise AdtError("batch size is 0; ask for at least one image.")
    if at_once is not None and at_once < 1:
        raise AdtError(f"at_once is {at_once}; let at least one image be in the making.")
    if drafting.policy.needs_drafter and drafter is None:
        raise AdtError(f"method {drafting.method!r} needs a drafter; give one, or choose the method 'autoregressive'.")
    if negatives is not None and len(negatives) != len(prompts):
        raise AdtError(
            f"{len(negatives)} negative prompts were given for {len(prompts)} prompts; give one for each, or none."
        )
