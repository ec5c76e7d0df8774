"""The round loop: draft, verify, accept. Plain loops over a :class:`Decoding` give progress, preview and cancel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch
from torch import Tensor

from .auto import CostAware, experience, verify_costs
from .drafters import Drafter, Verified
from .drafters.load import for_method
from .errors import AdtError
from .lantern import Lantern, relaxed_agreement
from .models.decoder import KVCache, Rows, Step, rope_tables
from .models.target import Prompt, Target, with_grammar
from .sampling import NOISE_VERSION, Sampling, noise_table, process_logits
from .shape import AdtTree, Drafting, FixedShape, TreeShape, make_policy
from .trace import ImageRound, Round, Trace
from .tree import DraftTree
from .verify import exact_agreement, longest_path

Check = Callable[[], None]


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over it once; each step yields a :class:`Round`. ``codes`` [B, T] int64 on the CPU holds what is
    decided so far, -1 elsewhere. Same seed, any method: same codes (up to floating-point near ties).

    prompts: each image's conditional row. negatives: the rows that guidance pushes away from; None for the
    unconditional ones. image_indices: index of each image within its prompt's batch, part
    of the noise key. drafter: needed by every method but ``autoregressive``. lantern: relaxed acceptance, which
    changes the image; None for the exact one. prefix: codes [B, P] of the first P cells of each image, which are kept; what
    follows is drawn with the noise of its own position, so a prefix of the seed's own image leads to that image. check: called often; may raise to
    cancel. Raises AdtError for settings that don't fit together.
    """

    def __init__(self, target: Target, prompts: list[Prompt], *, negatives: list[Prompt] | None = None,
                 sampling: Sampling = Sampling(), drafting: Drafting = Drafting(), drafter: Drafter | None = None,
                 lantern: Lantern | None = None, image_indices: list[int] | None = None, prefix: Tensor | None = None, check: Check | None = None):
        if not prompts:
            raise AdtError("batch size is 0; ask for at least one image.")
        if drafting.method != "autoregressive" and drafter is None:
            raise AdtError(f"method {drafting.method!r} needs a drafter; give one, or choose the method 'autoregressive'.")
        if negatives is not None and len(negatives) != len(prompts):
            raise AdtError(f"{len(negatives)} negative prompts were given for {len(prompts)} prompts; give one for each, or none.")
        self.target, self.sampling, self.drafting, self.lantern = target, sampling, drafting, lantern
        self._given = drafter  # experience with it is remembered by this object
        self._drafters = for_method(drafter, drafting) if drafting.method != "autoregressive" else ()
        self._check = check
        self._indices = image_indices if image_indices is not None else [0] * len(prompts)
        self._rows_ids = list(prompts)
        if sampling.guidance != 1:
            self._rows_ids += negatives or [target.unconditional(prompt) for prompt in prompts]
        self.images, self.length = len(prompts), target.length
        longest = max(map(len, self._rows_ids))
        if longest + self.length > target.decoder.config.max_positions:
            raise AdtError(f"prompt is {longest} tokens long, and {target.name} has room for "
                           f"{target.decoder.config.max_positions - self.length}; shorten it.")
        self._slots = longest + self.length + drafting.most_drafts + 1
        self.codes = torch.full((self.images, self.length), -1)
        self.start = 0 if prefix is None else self._keep(prefix)
        decoder = target.decoder
        self.trace = Trace(
            {"method": drafting.method, "proposal": drafting.proposal, "seed": sampling.seed, "device": str(decoder.embedding.device),
             "dtype": str(decoder.dtype).removeprefix("torch."), "weights": decoder.weights, "noise_version": NOISE_VERSION,
             "sampling": asdict(sampling), "drafting": asdict(drafting), "lantern": lantern and asdict(lantern)}, target.grid, self.images,
            start=self.start, row_end=target.row_end)

    def _keep(self, prefix: Tensor) -> int:
        """Enter the codes that are kept; returns how many each image has."""
        if prefix.ndim != 2 or len(prefix) != self.images or prefix.shape[1] > self.length:
            raise AdtError(f"prefix has the shape {list(prefix.shape)}; it must be [{self.images} images, at most {self.length} codes].")
        if prefix.numel() and not 0 <= int(prefix.min()) <= int(prefix.max()) < self.target.num_codes:
            raise AdtError(f"prefix holds codes from {int(prefix.min())} to {int(prefix.max())}; {self.target.name} has the codes 0 to "
                           f"{self.target.num_codes - 1}.")
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

    def grid_codes(self) -> Tensor:
        """Codes as [B, rows, columns] int64."""
        return self.target.cells(self.codes)

    def memory_required(self) -> int:
        """Bytes of KV caches, noise, the largest activations of a forward, and the codec at work on an image."""
        config, decoder = self.target.decoder.config, self.target.decoder
        rows, itemsize = len(self._rows_ids), decoder.embedding.element_size()
        caches = KVCache.num_bytes(config, rows, self._slots, itemsize)
        caches += max((drafter.cache_bytes(rows, self._slots, itemsize) for drafter in self._drafters), default=0)
        noise = self.images * self.length * self.target.num_tokens * 4
        tokens = max(max(map(len, self._rows_ids)) + self.start, self.drafting.most_drafts + 1)
        activations = 4 * rows * tokens * (2 * config.intermediate_size + 8 * config.hidden_size + self._slots + self.target.num_codes)
        widened = 4 * decoder.head.numel() * (itemsize < 4) + 6 * decoder.layers[0].gate_up.numel() * (decoder.weights is not None)
        pixels = self.target.grid[0] * self.target.grid[1] * self.target.downsample**2
        return caches + noise + activations + widened + self.target.codec.working_bytes(pixels)

    # ---- decoding --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Round]:
        if self.start == self.length:
            return
        started = time.perf_counter()
        self._prefill()
        self.trace.prefill_seconds = time.perf_counter() - started
        self._policies = self._make_policies()
        while any(position < self.length - 1 for position in self._positions):
            if self._check is not None:
                self._check()
            round = self._round(len(self.trace.rounds))
            self.trace.rounds.append(round)
            yield round

    @torch.inference_mode()
    def _prefill(self) -> None:
        """Read the prompts, and what is kept of the images, and draw the next token of every image."""
        decoder = self.target.decoder
        kept = decoder.image_ids[self.codes[:, : self.start].to(decoder.image_ids.device)].tolist()
        rows = [row.followed_by(kept[i % self.images], decoder.embedding) if self.start else row for i, row in enumerate(self._rows_ids)]
        self._rows = Rows(rows, self._slots, decoder.embedding)
        self._first_slot = self._rows.length - self.start  # of the cache; token i of an image goes i slots further
        self._cache = KVCache(decoder.config, self._rows.count, self._slots, decoder.embedding, self._check)
        self._rope = rope_tables(decoder.config, decoder.embedding)
        self.trace.settings["device"] = str(decoder.embedding.device)  # ComfyUI may have moved the weights since
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        self._noise = noise_table(self.sampling, self._indices, self.length, self.target.num_tokens, like, self._check)
        self._grammar = self.target.grammar(like)
        self._substituted = [0] * self.images
        if self.lantern is not None:
            self._neighbours = self.target.codec.neighbours(self.lantern.neighbours).padded(self.target.num_tokens).to(decoder.embedding.device)
        self._positions = [self.start - 1] * self.images  # raster position of each image's root; -1 is the prompt's end
        step = self._rows.prefill()
        features = decoder(self._rows.ids, step, self._cache, self._rope, self._check, self._rows.features)
        known = min(self.start + 1, self.target.columns)
        z = self._logits(features[:, -known:], torch.arange(1 - known, 1, device=features.device).expand(self.images, -1))
        self._root = self._perturbed(z[:, -1:], None)[:, 0].argmax(-1)
        self._positions = [self.start] * self.images
        self.codes[:, self.start] = self._root.cpu()
        self._proposer, drafter = None, self._choose_drafter()
        if drafter is not None:
            self._proposer = drafter.proposer(self.target, self._rows, self.images, self.sampling, self.drafting, self._noise)
            ids = torch.cat([self._rows.ids[:, 1:], self._row_ids(self._root[:, None])], 1)
            self._proposer.begin(features, ids, step, z, self.start)

    def _choose_drafter(self) -> Drafter | None:
        """What drafts in this batch; None for nothing. ``auto`` asks experience."""
        if self.drafting.method != "auto":
            return self._drafters[0] if self._drafters else None
        key = self._rows.count, replace(self.sampling, seed=0), self.lantern, self.start
        self._known = experience(self._given, key, self.length - self.start, len(self._drafters))
        self._source = self._known.begin()
        return None if self._source is None else self._drafters[self._known.sources.index(self._source)]

    @torch.inference_mode()
    def _make_policies(self) -> list[FixedShape | AdtTree | CostAware]:
        """One per image; ``auto`` has one for the batch, which times some forwards when it meets a model or a device for the first time."""
        if self.drafting.method != "auto" or self._source is None:
            return [make_policy(self.drafting, self.target.columns, self.sampling.seed, index) for index in self._indices]
        costs = verify_costs(self._read_nodes, self.target.decoder, self._rows.count)
        return [CostAware(costs, self._known, self._source, self.images)] * self.images

    def _read_nodes(self, nodes: int) -> None:
        """A target forward over so many nodes in mid-image, for its time."""
        codes = torch.zeros(self.images, nodes, dtype=torch.long, device=self._rows.device)
        middle = self._first_slot + max(self.length // 2, self.start)  # behind everything that the cache holds already
        features = self._forward(codes, self._rows.causal_step([middle] * self.images, nodes))
        self._logits(features, None).argmax(-1).tolist()

    def _row_ids(self, codes: Tensor) -> Tensor:
        """Codes [B, n] -> token ids of every row [R, n]."""
        return self._rows.spread(self.target.decoder.image_ids[codes])

    def _forward(self, codes: Tensor, step: Step) -> Tensor:
        """Codes [B, n] through the target: features [R, n, h]."""
        return self.target.decoder(self._row_ids(codes), step, self._cache, self._rope, self._check)

    def _logits(self, features: Tensor, depths: Tensor | None) -> Tensor:
        """Features [R, n, h] -> processed logits z of the tokens, [B, n, V]; depths [B, n] below the root, None for the root alone."""
        z = process_logits(self.target.decoder.logits(features, self.sampling.guidance), self.sampling)
        if self._grammar is None:
            return z
        at = torch.tensor(self._positions, device=z.device)[:, None] + 1 + (0 if depths is None else depths)
        return with_grammar(z, self._grammar, at)

    def _perturbed(self, z: Tensor, depths: Tensor | None) -> Tensor:
        """z + g of every node, [B, n, V]; depths [B, n] below the root, None for the root alone."""
        if self._noise is None:
            return z
        if len(set(self._positions)) == 1:
            ahead = self._noise[:, self._positions[0] + 1 :]
            return z + (ahead[:, :1] if depths is None else ahead.gather(1, depths[..., None].expand(-1, -1, z.shape[-1])))
        roots = torch.tensor(self._positions, device=z.device)[:, None]
        at = (roots + 1 + (0 if depths is None else depths)).clamp_max(self.length - 1)
        return z + self._noise[torch.arange(self.images, device=z.device)[:, None], at]

    def _emit(self, features: Tensor) -> Tensor:
        """The code that the target emits after every root, [B, 1]: features [R, 1, h]."""
        return self._perturbed(self._logits(features, None), None).argmax(-1)

    @torch.inference_mode()
    def _round(self, index: int) -> Round:
        """One target forward. Inference mode ends with it: a generator must not leave it on between rounds."""
        started = time.perf_counter()
        shapes = [self._shape(image) for image in range(self.images)]
        drafter_forwards = self._proposer.forwards if self._proposer else 0
        tree = None
        starts = [self._first_slot + position for position in self._positions]
        if max(shape.depth for shape in shapes) > 0:
            tree = self._proposer.propose(self._root, starts, self._positions, shapes)
        drafted = time.perf_counter()
        shares = self._plain(starts, shapes) if tree is None else self._verify(tree, starts, shapes)
        shares = tuple(share for share in shares if share.position < self.length - 1)
        seconds = time.perf_counter() - started
        for share in shares:
            self._policies[share.image].update(share, seconds)
            self._positions[share.image] += share.accepted + 1
            self._substituted[share.image] += share.substituted
        forwards = (self._proposer.forwards if self._proposer else 0) - drafter_forwards
        return Round(index, seconds, drafted - started, forwards, shares)

    def _shape(self, image: int) -> TreeShape:
        """The policy's choice, cut so that the last draft still leaves one token to emit."""
        room = self.length - 2 - self._positions[image]
        if self._proposer is None or room <= 0:
            return TreeShape(0, 1)
        shape = self._policies[image].choose(self._positions[image])
        return shape._replace(depth=min(shape.depth, room))

    def _plain(self, starts: list[int], shapes: list[TreeShape]) -> list[ImageRound]:
        """One token per image, no drafts."""
        features = self._forward(self._root[:, None], self._rows.step(starts, 0, 0, None))
        self._root = self._emit(features)[:, 0]
        for image, code in enumerate(self._root.tolist()):
            self._decide(image, [code])
        return [ImageRound(image, position, shape.depth, shape.width, 0, 0, 0, ()) for image, (position, shape) in enumerate(zip(self._positions, shapes))]

    def _verify(self, tree: DraftTree, starts: list[int], shapes: list[TreeShape]) -> list[ImageRound]:
        """Check a whole tree in one forward and advance every image by its accepted path."""
        features = self._forward(tree.tokens, self._rows.step(starts, 0, tree.depths, tree.ancestors))
        z = self._logits(features, tree.depths)
        perturbed = self._perturbed(z, tree.depths)
        emitted = perturbed.argmax(-1)
        along = [tree.tokens, tree.ranks]
        if self.lantern is None:
            agrees = exact_agreement(tree, emitted)
        else:
            agrees, substitutes = self._relaxed(tree, emitted, z, shapes)
            along.append(substitutes.long())
        verdict = longest_path(tree, agrees, emitted)
        counts = torch.stack([verdict.accepted, tree.realised_depth(), tree.realised_width(), tree.valid.sum(1) - 1, verdict.next_root], 1)
        read = torch.cat([counts, verdict.path, *(values.gather(1, verdict.path) for values in along)], 1).tolist()  # the one synchronisation
        width, shares, contiguous = verdict.path.shape[1], [], True
        for image, (row, shape, position) in enumerate(zip(read, shapes, self._positions)):
            accepted, depth, broad, nodes, next_root = row[:5]
            path, codes, ranks, *substituted = (row[start + 1 : start + 1 + accepted] for start in range(5, len(row), width))
            self._decide(image, [*codes, next_root])
            contiguous &= path == list(range(1, accepted + 1))
            shares.append(ImageRound(image, position, shape.depth, shape.width, depth, nodes, accepted, tuple(ranks), sum(map(sum, substituted)), broad))
        counts = [share.accepted for share in shares]
        if not contiguous:
            kept = self._rows.spread(verdict.path[:, : max(counts) + 1])
            self._cache.compact(self._rows.spread(torch.tensor(starts, device=kept.device)), kept)
        self._root = verdict.next_root
        self._proposer.observe(Verified(tree, features, perturbed, verdict, starts, list(self._positions), counts, contiguous))
        return shares

    def _decide(self, image: int, codes: list[int]) -> None:
        """Enter the codes that follow an image's root; a finished image takes no more."""
        first = self._positions[image] + 1
        if first < self.length:
            self.codes[image, first : first + len(codes)] = torch.tensor(codes)

    def _relaxed(self, tree: DraftTree, emitted: Tensor, z: Tensor, shapes: list[TreeShape]) -> tuple[Tensor, Tensor]:
        """Nodes that pass under LANTERN, and those that pass as substitutes."""
        allowed = [self.lantern.allowed(position + 1 - self.start, substituted) for position, substituted in zip(self._positions, self._substituted)]
        return relaxed_agreement(tree, emitted, z, self._neighbours, self.lantern, greedy=self.sampling.temperature == 0,
                                 width=max(shape.width for shape in shapes), allowed=torch.tensor(allowed, device=z.device))
