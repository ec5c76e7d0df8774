"""The round loop: draft, verify, accept. Plain loops over a :class:`Decoding` give progress, preview and cancel."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ..drafters.base import Drafter, Verified
from ..drafters.load import for_method
from ..errors import AdtError
from ..models.cache import KVCache
from ..models.graphs import graphed, wanted
from ..models.layers import rope_tables
from ..models.rows import Rows, Step
from ..models.target import Prompt, Target, with_grammar
from ..policies.auto import CostAware, experience
from ..policies.shape import AdtTree, Drafting, FixedShape, TreeShape, make_policy
from ..rules.sampling import NOISE_VERSION, Sampling, noise_table, process_logits
from ..rules.trace import ImageRound, Round, Trace
from ..rules.tree import DraftTree
from ..rules.verify import Lantern, exact_agreement, longest_path, relaxed_agreement
from .lanes import Lanes

Check = Callable[[], None]

WAIT = 0.05
"""Share of the way that is left to a plain image for which it may wait for the others: what a forward over images in step is cheaper by."""


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over it once; each step yields a :class:`Round`. ``codes`` [B, T] int64 on the CPU holds what is
    decided so far, -1 elsewhere. Same seed, any method: same codes (up to floating-point near ties).

    prompts: each image's conditional row. negatives: the rows that guidance pushes away from; None for the
    unconditional ones. image_indices: index of each image within its prompt's batch, part
    of the noise key. drafter: needed by every method but ``autoregressive``. lantern: relaxed acceptance, which
    changes the image; None for the exact one. prefix: codes [B, P] of the first P cells of each image, which are kept; what
    follows is drawn with the noise of its own position, so a prefix of the seed's own image leads to that image. at_once: how many images are
    in the making at the same time, if not all: when one is finished, the next takes its place. check: called often; may raise to
    cancel. Raises AdtError for settings that don't fit together.
    """

    def __init__(
        self,
        target: Target,
        prompts: list[Prompt],
        *,
        negatives: list[Prompt] | None = None,
        sampling: Sampling = Sampling(),
        drafting: Drafting = Drafting(),
        drafter: Drafter | None = None,
        lantern: Lantern | None = None,
        image_indices: list[int] | None = None,
        prefix: Tensor | None = None,
        at_once: int | None = None,
        check: Check | None = None,
    ):
        if not prompts:
            raise AdtError("batch size is 0; ask for at least one image.")
        if at_once is not None and at_once < 1:
            raise AdtError(f"at_once is {at_once}; let at least one image be in the making.")
        if drafting.method != "autoregressive" and drafter is None:
            raise AdtError(
                f"method {drafting.method!r} needs a drafter; give one, or choose the method 'autoregressive'."
            )
        if negatives is not None and len(negatives) != len(prompts):
            raise AdtError(
                f"{len(negatives)} negative prompts were given for {len(prompts)} prompts; give one for each, or none."
            )
        self.target, self.sampling, self.drafting, self.lantern = target, sampling, drafting, lantern
        self._given = drafter  # experience with it is remembered by this object
        self._drafters = for_method(drafter, drafting) if drafting.method != "autoregressive" else ()
        self._check = check
        self._indices = image_indices if image_indices is not None else [0] * len(prompts)
        self._prompts = list(prompts)  # of all rows, the conditional ones first
        if sampling.guidance != 1:
            self._prompts += negatives or [target.unconditional(prompt) for prompt in prompts]
        self.images, self.length = len(prompts), target.length
        self.at_once = min(at_once or self.images, self.images)
        longest = max(map(len, self._prompts))
        if longest + self.length > target.decoder.config.max_positions:
            raise AdtError(
                f"prompt is {longest} tokens long, and {target.name} has room for "
                f"{target.decoder.config.max_positions - self.length}; shorten it."
            )
        self._first_slot = longest  # of the cache; token i of an image goes i slots further
        self._slots = longest + self.length + drafting.most_drafts + 1
        self._lanes: Lanes | None = None
        self.codes = torch.full((self.images, self.length), -1)
        self.start = 0 if prefix is None else self._keep(prefix)
        decoder = target.decoder
        self.trace = Trace(
            {
                "method": drafting.method,
                "proposal": drafting.proposal,
                "seed": sampling.seed,
                "device": str(decoder.embedding.device),
                "dtype": str(decoder.dtype).removeprefix("torch."),
                "weights": decoder.weights,
                "noise_version": NOISE_VERSION,
                "sampling": asdict(sampling),
                "drafting": asdict(drafting),
                "lantern": lantern and asdict(lantern),
            },
            target.grid,
            self.images,
            start=self.start,
            row_end=target.row_end,
        )

    def _keep(self, prefix: Tensor) -> int:
        """Enter the codes that are kept; returns how many each image has."""
        if prefix.ndim != 2 or len(prefix) != self.images or prefix.shape[1] > self.length:
            raise AdtError(
                f"prefix has the shape {list(prefix.shape)}; it must be [{self.images} images, at most {self.length} codes]."
            )
        if prefix.numel() and not 0 <= int(prefix.min()) <= int(prefix.max()) < self.target.num_codes:
            raise AdtError(
                f"prefix holds codes from {int(prefix.min())} to {int(prefix.max())}; {self.target.name} has the codes 0 to "
                f"{self.target.num_codes - 1}."
            )
        tokens = self.target.tokens(prefix.cpu())
        self.codes[:, : tokens.shape[1]] = tokens
        return tokens.shape[1]

    # ---- what callers read -----------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        return self.images * self.length

    @property
    def done_tokens(self) -> int:
        return int((self.codes >= 0).sum())

    @property
    def at_work(self) -> list[int]:
        """Numbers of the images in the making."""
        return list(self._lanes.images) if self._lanes is not None else []

    def grid_codes(self) -> Tensor:
        """Codes as [B, rows, columns] int64."""
        return self.target.cells(self.codes)

    def memory_required(self) -> int:
        """Bytes of KV caches, noise, the largest activations of a forward, and the codec at work on an image."""
        config, decoder = self.target.decoder.config, self.target.decoder
        groups, itemsize = len(self._prompts) // self.images, decoder.embedding.element_size()
        rows, held = (
            groups * self.at_once,
            min(2 * self.at_once, self.images),
        )  # those that enter and those that leave are there together
        caches = KVCache.num_bytes(config, rows, self._slots, itemsize)
        caches += max(
            (drafter.cache_bytes(groups * held, self._slots, itemsize) for drafter in self._drafters), default=0
        )
        noise = held * self.length * self.target.num_tokens * 4
        tokens = max(self._first_slot + self.start, self.drafting.most_drafts + 1)
        activations = (
            4
            * rows
            * tokens
            * (2 * config.intermediate_size + 8 * config.hidden_size + self._slots + self.target.num_codes)
        )
        widened = 4 * decoder.head.numel() * (itemsize < 4) + 6 * decoder.layers[0].gate_up.numel() * (
            decoder.weights is not None
        )
        if wanted(decoder.embedding.device):
            activations, widened = 2 * activations, 2 * widened  # those of graphs are their own
        pixels = self.target.grid[0] * self.target.grid[1] * self.target.downsample**2
        return caches + noise + activations + widened + self.target.codec.working_bytes(pixels)

    # ---- decoding --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Round]:
        if self.start == self.length:
            return
        self._begin()
        try:
            while (round := self._next()) is not None:
                self.trace.rounds.append(round)
                yield round
        finally:
            self._lanes = None  # caches and graphs go with the run

    def _next(self) -> Round | None:
        """The next round; None when all images are finished."""
        while True:
            try:
                if not self._refill():
                    return None
                if self._check is not None:
                    self._check()
                return self._round(len(self.trace.rounds))
            except torch.cuda.OutOfMemoryError:
                if self.at_once == 1:
                    raise
            self._halve()  # out here, where the error no longer holds on to what was in memory

    @torch.inference_mode()
    def _begin(self) -> None:
        """What all images share."""
        decoder = self.target.decoder
        self.trace.settings["device"] = str(decoder.embedding.device)  # ComfyUI may have moved the weights since
        self._like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        self._rope = rope_tables(decoder.config, decoder.embedding)
        self._grammar = self.target.grammar(self._like)
        self._substituted = [0] * self.images
        if self.lantern is not None:
            self._neighbours = (
                self.target.codec.neighbours(self.lantern.neighbours)
                .padded(self.target.num_tokens)
                .to(decoder.embedding.device)
            )
        self._waiting = list(range(self.images))

    @torch.inference_mode()
    def _refill(self) -> bool:
        """Let finished images leave their lanes, and others take their places while there are any. False when all are finished."""
        if self._lanes is None:
            if not self._waiting:
                return False
            self._lanes = self._enter_all()
        while finished := [lane for lane, position in enumerate(self._lanes.positions) if position == self.length - 1]:
            everyone = len(finished) == len(self._lanes)
            if everyone and not self._waiting:
                return False
            if self._waiting and self._lanes.proposer is not None:
                lanes = finished[: len(self._waiting)]
                self._lanes.admit(lanes, self._enter(len(lanes)))
            elif everyone:
                self._lanes = self._enter_all()
            else:  # without drafts images best go in step
                self._lanes.keep([lane for lane in range(len(self._lanes)) if lane not in finished])
        return True

    def _enter_all(self) -> Lanes:
        """The next images in all lanes, in the memory of those before them if they are as many."""
        self._drafter, self._cost_aware = self._choose_drafter(), None
        before, self._lanes = self._lanes, None
        if before is None or len(before) != min(self.at_once, len(self._waiting)):
            del before  # its memory goes first
            return self._enter(self.at_once, self._slots)
        lanes = self._enter(self.at_once)
        before.cache.admit(torch.arange(lanes.rows.count, device=lanes.rows.device), lanes.cache)
        lanes.cache, lanes.read = before.cache, before.read
        return lanes

    def _halve(self) -> None:
        """Memory ran out: what is not finished starts again, half as many images at once."""
        self.at_once //= 2
        self._lanes = None
        self._waiting = [image for image in range(self.images) if self.codes[image, -1] < 0]
        self.codes[self._waiting, self.start :] = -1
        self._substituted = [0 if image in self._waiting else count for image, count in enumerate(self._substituted)]
        self.trace.forget(self._waiting)
        logging.getLogger(__name__).warning(
            "Out of memory; going on with %s at once.", f"{self.at_once} images" if self.at_once > 1 else "one image"
        )

    def _enter(self, count: int, slots: int | None = None) -> Lanes:
        """Read the prompts of the next images, and what is kept of them, and draw the next token of each. slots: of the cache; none to spare otherwise."""
        started = time.perf_counter()
        images, self._waiting = self._waiting[:count], self._waiting[count:]
        decoder, count = self.target.decoder, len(images)
        kept = decoder.image_ids[self.codes[images, : self.start].to(self._like.device)].tolist()
        prompts = [
            self._prompts[first + image] for first in range(0, len(self._prompts), self.images) for image in images
        ]
        if self.start:
            prompts = [prompt.followed_by(kept[i % count], decoder.embedding) for i, prompt in enumerate(prompts)]
        rows = Rows(prompts, self._slots, decoder.embedding, self._first_slot + self.start)
        cache = KVCache(decoder.config, rows.count, slots or rows.length, decoder.embedding, self._check)
        noise = noise_table(
            self.sampling,
            [self._indices[image] for image in images],
            self.length,
            self.target.num_tokens,
            self._like,
            self._check,
        )
        step = rows.prefill()
        features = decoder(rows.ids, step, cache, self._rope, self._check, rows.features)
        lanes = Lanes(
            images, rows, graphed(decoder, rows.device), cache, noise, torch.empty(0), [self.start - 1] * count
        )
        known = min(self.start + 1, self.target.columns)
        z = self._logits(
            features[:, -known:], torch.arange(1 - known, 1, device=features.device).expand(count, -1), lanes
        )
        lanes.root = self._perturbed(z[:, -1:], None, lanes)[:, 0].argmax(-1)
        lanes.positions = [self.start] * count
        self.codes[images, self.start] = lanes.root.cpu()
        if self._drafter is not None:
            lanes.proposer = self._drafter.proposer(self.target, rows, count, self.sampling, self.drafting, noise)
            ids = torch.cat([rows.ids[:, 1:], rows.spread(decoder.image_ids[lanes.root[:, None]])], 1)
            lanes.proposer.begin(features, ids, step, z, self.start)
        self.trace.entered(images, time.perf_counter() - started)
        lanes.policies = self._policies_of(lanes)
        return lanes

    def _choose_drafter(self) -> Drafter | None:
        """What drafts in this batch; None for nothing. ``auto`` asks experience."""
        if self.drafting.method != "auto":
            return self._drafters[0] if self._drafters else None
        groups, embedding = len(self._prompts) // self.images, self.target.decoder.embedding
        key = (
            groups,
            replace(self.sampling, seed=0),
            self.drafting.proposal,
            self.lantern,
            self.start,
            embedding.device,
            embedding.dtype,
        )
        self._known = experience(self._given, key, self.length - self.start, len(self._drafters), self.at_once)
        self._source = self._known.begin()
        return None if self._source is None else self._drafters[self._known.sources.index(self._source)]

    def _policies_of(self, lanes: Lanes) -> list[FixedShape | AdtTree | CostAware]:
        """One for each image; ``auto`` has one for all."""
        if self.drafting.method != "auto" or self._drafter is None:
            return [
                make_policy(self.drafting, self.target.columns, self.sampling.seed, self._indices[image])
                for image in lanes.images
            ]
        if self._cost_aware is None:
            self._cost_aware = CostAware(self._known, self._source, len(lanes), self._drafter.width)
        return [self._cost_aware] * len(lanes)

    def _forward(self, codes: Tensor, step: Step, lanes: Lanes) -> Tensor:
        """Codes [B, n] through the target: features [R, n, h]."""
        ids = lanes.rows.spread(self.target.decoder.image_ids[codes])
        return lanes.read(ids, step=step, cache=lanes.cache, rope=self._rope, check=self._check)

    def _logits(self, features: Tensor, depths: Tensor | None, lanes: Lanes) -> Tensor:
        """Features [R, n, h] -> processed logits z of the tokens, [B, n, V]; depths [B, n] below the root, None for the root alone."""
        z = process_logits(self.target.decoder.logits(features, self.sampling.guidance), self.sampling)
        if self._grammar is None:
            return z
        at = torch.tensor(lanes.positions, device=z.device)[:, None] + 1 + (0 if depths is None else depths)
        return with_grammar(z, self._grammar, at)

    def _perturbed(self, z: Tensor, depths: Tensor | None, lanes: Lanes) -> Tensor:
        """z + g of every node, [B, n, V]; depths [B, n] below the root, None for the root alone."""
        if lanes.noise is None:
            return z
        if len(set(lanes.positions)) == 1:
            ahead = lanes.noise[:, lanes.positions[0] + 1 :]
            return z + (
                ahead[:, :1] if depths is None else ahead.gather(1, depths[..., None].expand(-1, -1, z.shape[-1]))
            )
        roots = torch.tensor(lanes.positions, device=z.device)[:, None]
        at = (roots + 1 + (0 if depths is None else depths)).clamp_max(self.length - 1)
        return z + lanes.noise[torch.arange(len(lanes), device=z.device)[:, None], at]

    @torch.inference_mode()
    def _round(self, index: int) -> Round:
        """One target forward. Inference mode ends with it: a generator must not leave it on between rounds."""
        lanes, began = self._lanes, time.perf_counter()
        starts = [self._first_slot + position for position in lanes.positions]
        if self._cost_aware is not None and self._known.wants_plain:
            self._known.saw_plain([self._time_plain_step(starts) for _ in range(2)])
        started = time.perf_counter()
        shapes = [self._shape(lane) for lane in range(len(lanes))]
        forwards_before = lanes.proposer.forwards if lanes.proposer else 0
        tree = None
        if max(shape.depth for shape in shapes) > 0:
            tree = lanes.proposer.propose(lanes.root, starts, lanes.positions, shapes)
        drafted = time.perf_counter()
        shares = self._plain(starts, shapes) if tree is None else self._verify(tree, starts, shapes)
        ended = time.perf_counter()
        if self._cost_aware is not None:
            self._cost_aware.took(max(share.nodes for share in shares), ended - started)
        for share in shares:
            lane = lanes.images.index(share.image)
            lanes.policies[lane].update(share)
            lanes.positions[lane] += share.accepted + 1
            self._substituted[share.image] += share.substituted
        forwards = (lanes.proposer.forwards if lanes.proposer else 0) - forwards_before
        if self._cost_aware is not None and not self._cost_aware.drafts:
            self._drafter = self._cost_aware = lanes.proposer = (
                None  # what nobody drafts with need not be kept up to date
            )
        return Round(index, ended - began, drafted - started, forwards, tuple(shares))

    def _shape(self, lane: int) -> TreeShape:
        """The policy's choice, cut so that the last draft still leaves one token to emit."""
        position = self._lanes.positions[lane]
        room = self.length - 2 - position
        if self._lanes.proposer is None or room <= 0:
            return TreeShape(0, 1)
        shape = self._lanes.policies[lane].choose(position)
        return shape._replace(depth=min(shape.depth, room))

    def _step(self, starts: list[int]) -> Tensor:
        """Read the roots alone: the codes [B] that follow them."""
        lanes = self._lanes
        features = self._forward(lanes.root[:, None], lanes.rows.step(starts, 0, 0, None), lanes)
        return self._perturbed(self._logits(features, None, lanes), None, lanes).argmax(-1)[:, 0]

    def _time_plain_step(self, starts: list[int]) -> float:
        """Seconds of a plain step. It decides nothing: the round reads the roots again, into the same place."""
        started = time.perf_counter()
        self._step(starts).tolist()
        return time.perf_counter() - started

    def _plain(self, starts: list[int], shapes: list[TreeShape]) -> list[ImageRound]:
        """One token per image, no drafts. Images that are far ahead of none wait until all are in step: that makes forwards cheaper."""
        lanes = self._lanes
        following = self._step(starts)
        first, last = min(lanes.positions), max(lanes.positions)
        if lanes.proposer is None and 0 < last - first <= WAIT * (self.length - last):
            moving = [lane for lane, position in enumerate(lanes.positions) if position < last]
            following = lanes.root.index_copy(0, torch.tensor(moving, device=following.device), following[moving])
        else:
            moving = list(range(len(lanes)))
        lanes.root, codes = following, following.tolist()
        shares = []
        for lane in moving:
            image, position, shape = lanes.images[lane], lanes.positions[lane], shapes[lane]
            self.codes[image, position + 1] = codes[lane]
            shares.append(ImageRound(image, position, shape.depth, shape.width, 0, 0, 0, ()))
        return shares

    def _verify(self, tree: DraftTree, starts: list[int], shapes: list[TreeShape]) -> list[ImageRound]:
        """Check a whole tree in one forward and advance every image by its accepted path."""
        lanes = self._lanes
        features = self._forward(tree.tokens, lanes.rows.step(starts, 0, tree.depths, tree.ancestors), lanes)
        z = self._logits(features, tree.depths, lanes)
        perturbed = self._perturbed(z, tree.depths, lanes)
        emitted = perturbed.argmax(-1)
        along = [tree.tokens, tree.ranks]
        if self.lantern is None:
            agrees = exact_agreement(tree, emitted)
        else:
            agrees, substitutes = self._relaxed(tree, emitted, z, shapes)
            along.append(substitutes.long())
        verdict = longest_path(tree, agrees, emitted)
        counts = torch.stack(
            [verdict.accepted, tree.realised_depth(), tree.realised_width(), tree.valid.sum(1) - 1, verdict.next_root],
            1,
        )
        read = torch.cat(
            [counts, verdict.path, *(values.gather(1, verdict.path) for values in along)], 1
        ).tolist()  # the one synchronisation
        width, shares, emitted, contiguous = verdict.path.shape[1], [], [], True
        for row, shape, image, position in zip(read, shapes, lanes.images, lanes.positions):
            accepted, depth, broad, nodes, next_root = row[:5]
            path, codes, ranks, *substituted = (
                row[start + 1 : start + 1 + accepted] for start in range(5, len(row), width)
            )
            emitted.append(torch.tensor([*codes, next_root]))
            contiguous &= path == list(range(1, accepted + 1))
            shares.append(
                ImageRound(
                    image,
                    position,
                    shape.depth,
                    shape.width,
                    depth,
                    nodes,
                    accepted,
                    tuple(ranks),
                    sum(map(sum, substituted)),
                    broad,
                )
            )
        counts = [share.accepted for share in shares]
        if not contiguous:
            kept = lanes.rows.spread(verdict.path[:, : max(counts) + 1])
            lanes.cache.compact(lanes.rows.spread(torch.tensor(starts, device=kept.device)), kept)
        lanes.root = verdict.next_root
        lanes.proposer.observe(
            Verified(tree, features, perturbed, verdict, starts, list(lanes.positions), counts, contiguous)
        )
        for share, codes in zip(
            shares, emitted
        ):  # last, when no memory is asked for any more: a round counts as a whole or not at all
            self.codes[share.image, share.position + 1 : share.position + 1 + len(codes)] = codes
        return shares

    def _relaxed(self, tree: DraftTree, emitted: Tensor, z: Tensor, shapes: list[TreeShape]) -> tuple[Tensor, Tensor]:
        """Nodes that pass under LANTERN, and those that pass as substitutes."""
        allowed = [
            self.lantern.allowed(position + 1 - self.start, self._substituted[image])
            for image, position in zip(self._lanes.images, self._lanes.positions)
        ]
        return relaxed_agreement(
            tree,
            emitted,
            z,
            self._neighbours,
            self.lantern,
            greedy=self.sampling.temperature == 0,
            width=max(shape.width for shape in shapes),
            allowed=torch.tensor(allowed, device=z.device),
        )
