"""The round loop: draft, verify, accept. Plain loops over a :class:`Decoding` give progress, preview and cancel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch
from torch import Tensor

from .drafters import Drafter, Verified
from .errors import AdtError
from .models.chameleon import Target
from .models.decoder import KVCache, Rows, Step, rope_tables
from .sampling import NOISE_VERSION, Sampling, guide, noise_table, process_logits
from .shape import Drafting, TreeShape, make_policy
from .trace import ImageRound, Round, Trace
from .tree import DraftTree
from .verify import verify_exact

Check = Callable[[], None]


class Decoding:
    """Generation of one batch of images, one round (one target forward) at a time.

    Iterate over it once; each step yields a :class:`Round`. ``codes`` [B, T] int64 on the CPU holds what is
    decided so far, -1 elsewhere. Same seed, any method: same codes (up to floating-point near ties).

    prompts: token ids of each image's conditional row. negatives: ids of the rows that guidance pushes away
    from; None for the unconditional row. image_indices: index of each image within its prompt's batch, part
    of the noise key. drafter: needed by every method but ``autoregressive``. check: called often; may raise to
    cancel. Raises AdtError for settings that don't fit together.
    """

    def __init__(self, target: Target, prompts: list[list[int]], *, negatives: list[list[int]] | None = None,
                 sampling: Sampling = Sampling(), drafting: Drafting = Drafting(), drafter: Drafter | None = None,
                 image_indices: list[int] | None = None, check: Check | None = None):
        if not prompts:
            raise AdtError("batch size is 0; ask for at least one image.")
        if drafting.method != "autoregressive" and drafter is None:
            raise AdtError(f"method {drafting.method!r} needs a drafter; give one, or choose the method 'autoregressive'.")
        if negatives is not None and len(negatives) != len(prompts):
            raise AdtError(f"{len(negatives)} negative prompts were given for {len(prompts)} prompts; give one for each, or none.")
        self.target, self.sampling, self.drafting = target, sampling, drafting
        self._drafter = drafter if drafting.method != "autoregressive" else None
        self._check = check
        self._indices = image_indices if image_indices is not None else [0] * len(prompts)
        self._rows_ids = list(prompts)
        if sampling.guidance != 1:
            self._rows_ids += negatives or [target.unconditional_prompt()] * len(prompts)
        self.images, (self._grid_rows, self._columns) = len(prompts), target.grid
        self.length = self._grid_rows * self._columns
        longest = max(map(len, self._rows_ids))
        if longest + self.length > target.decoder.config.max_positions:
            raise AdtError(f"prompt is {longest} tokens long, and {target.name} has room for "
                           f"{target.decoder.config.max_positions - self.length}; shorten it.")
        shape = (drafting.depth_max, drafting.width_max) if drafting.method == "adt-tree" else (drafting.depth, drafting.width)
        drafts = 0 if self._drafter is None else max(drafting.nodes, shape[0] * shape[1])
        self._slots = longest + self.length + drafts + 1
        self.codes = torch.full((self.images, self.length), -1)
        decoder = target.decoder
        self.trace = Trace(
            {"method": drafting.method, "proposal": drafting.proposal, "seed": sampling.seed, "device": str(decoder.embedding.device),
             "dtype": str(decoder.dtype).removeprefix("torch."), "noise_version": NOISE_VERSION,
             "sampling": asdict(sampling), "drafting": asdict(drafting)}, target.grid, self.images)

    # ---- what callers read -----------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        return self.images * self.length

    @property
    def done_tokens(self) -> int:
        return int((self.codes >= 0).sum())

    def grid_codes(self) -> Tensor:
        """Codes as [B, rows, columns] int64."""
        return self.codes.view(self.images, self._grid_rows, self._columns)

    def memory_required(self) -> int:
        """Bytes of KV caches, noise and the largest activations of a forward."""
        config, decoder = self.target.decoder.config, self.target.decoder
        rows, itemsize = len(self._rows_ids), decoder.embedding.element_size()
        caches = KVCache.num_bytes(config, rows, self._slots, itemsize)
        if self._drafter is not None:
            caches += self._drafter.cache_bytes(rows, self._slots, itemsize)
        noise = self.images * self.length * self.target.num_codes * 4
        tokens = max(max(map(len, self._rows_ids)), self.drafting.nodes + 1)
        return caches + noise + 4 * rows * tokens * (2 * config.intermediate_size + 8 * config.hidden_size + self._slots + self.target.num_codes)

    # ---- decoding --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Round]:
        started = time.perf_counter()
        self._prefill()
        self.trace.prefill_seconds = time.perf_counter() - started
        while any(position < self.length - 1 for position in self._positions):
            if self._check is not None:
                self._check()
            round = self._round(len(self.trace.rounds))
            self.trace.rounds.append(round)
            yield round

    @torch.inference_mode()
    def _prefill(self) -> None:
        """Read the prompts and draw the first token of every image."""
        decoder = self.target.decoder
        self._rows = Rows(self._rows_ids, self._slots, decoder.embedding)
        self._cache = KVCache(decoder.config, self._rows.count, self._slots, decoder.embedding, self._check)
        self._rope = rope_tables(decoder.config, decoder.embedding)
        self.trace.settings["device"] = str(decoder.embedding.device)  # ComfyUI may have moved the weights since
        like = torch.empty(0, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        self._noise = noise_table(self.sampling, self._indices, self.length, self.target.num_codes, like, self._check)
        self._policies = [make_policy(self.drafting, self._columns, self.sampling.seed, index) for index in self._indices]
        self._positions = [-1] * self.images  # raster position of each image's root; -1 is the prompt's end
        step = self._rows.prefill()
        features = decoder(self._rows.ids, step, self._cache, self._rope, self._check)
        perturbed = self._perturbed(features[:, -1:], None)
        self._root = perturbed[:, 0].argmax(-1)
        self._positions = [0] * self.images
        self.codes[:, 0] = self._root.cpu()
        self._proposer = None
        if self._drafter is not None:
            self._proposer = self._drafter.proposer(self.target, self._rows, self.images, self.sampling, self.drafting, self._noise)
            ids = torch.cat([self._rows.ids[:, 1:], self._row_ids(self._root[:, None])], 1)
            self._proposer.begin(features, ids, step, perturbed)

    def _row_ids(self, codes: Tensor) -> Tensor:
        """Codes [B, n] -> token ids of every row [R, n]."""
        return self._rows.spread(self.target.decoder.image_ids[codes])

    def _forward(self, codes: Tensor, step: Step) -> Tensor:
        """Codes [B, n] through the target: features [R, n, h]."""
        return self.target.decoder(self._row_ids(codes), step, self._cache, self._rope, self._check)

    def _perturbed(self, features: Tensor, depths: Tensor | None) -> Tensor:
        """z + g of every node, [B, n, V]: features [R, n, h]; depths [B, n] below the root, None for the root alone."""
        z = process_logits(self.target.decoder.logits(guide(features, self.sampling.guidance)), self.sampling)
        if self._noise is None:
            return z
        if len(set(self._positions)) == 1:
            ahead = self._noise[:, self._positions[0] + 1 :]
            return z + (ahead[:, :1] if depths is None else ahead.gather(1, depths[..., None].expand(-1, -1, z.shape[-1])))
        roots = torch.tensor(self._positions, device=z.device)[:, None]
        at = (roots + 1 + (0 if depths is None else depths)).clamp_max(self.length - 1)
        return z + self._noise[torch.arange(self.images, device=z.device)[:, None], at]

    def _emit(self, features: Tensor, depths: Tensor | None = None) -> Tensor:
        """Codes the target emits after every node, [B, n]."""
        return self._perturbed(features, depths).argmax(-1)

    @torch.inference_mode()
    def _round(self, index: int) -> Round:
        """One target forward. Inference mode ends with it: a generator must not leave it on between rounds."""
        started = time.perf_counter()
        shapes = [self._shape(image) for image in range(self.images)]
        drafter_forwards = self._proposer.forwards if self._proposer else 0
        tree = None
        starts = [self._rows.length + position for position in self._positions]
        if max(shape.depth for shape in shapes) > 0:
            tree = self._proposer.propose(self._root, starts, self._positions, shapes)
        drafted = time.perf_counter()
        accepted, depths, nodes, ranks = self._plain(starts) if tree is None else self._verify(tree, starts, shapes)
        images = []
        for image, (shape, position) in enumerate(zip(shapes, self._positions)):
            if position >= self.length - 1:
                continue
            a = accepted[image]
            self._policies[image].update(position, a, depths[image])
            images.append(ImageRound(image, position, shape.depth, shape.width, depths[image], nodes[image], a, tuple(ranks[image][:a])))
            self._positions[image] = position + a + 1
        forwards = (self._proposer.forwards if self._proposer else 0) - drafter_forwards
        return Round(index, time.perf_counter() - started, drafted - started, forwards, tuple(images))

    def _shape(self, image: int) -> TreeShape:
        """The policy's choice, cut so that the last draft still leaves one token to emit."""
        room = self.length - 2 - self._positions[image]
        if self._proposer is None or room <= 0:
            return TreeShape(0, 1)
        shape = self._policies[image].choose(self._positions[image])
        return TreeShape(min(shape.depth, room), shape.width)

    def _plain(self, starts: list[int]) -> tuple[list[int], list[int], list[int], list[list[int]]]:
        """One token per image, no drafts."""
        features = self._forward(self._root[:, None], self._rows.step(starts, 0, 0, None))
        self._root = self._emit(features)[:, 0]
        for image, code in enumerate(self._root.tolist()):
            if self._positions[image] < self.length - 1:
                self.codes[image, self._positions[image] + 1] = code
        none = [0] * self.images
        return none, none, none, [[]] * self.images

    def _verify(self, tree: DraftTree, starts: list[int], shapes: list[TreeShape]) -> tuple[list[int], list[int], list[int], list[list[int]]]:
        """Check a whole tree in one forward and advance every image by its accepted path."""
        features = self._forward(tree.tokens, self._rows.step(starts, 0, tree.depths, tree.ancestors))
        perturbed = self._perturbed(features, tree.depths)
        verdict = verify_exact(tree, perturbed.argmax(-1), max(shape.depth for shape in shapes))
        counts = torch.stack([verdict.accepted, tree.realised_depth(), tree.valid.sum(1) - 1, verdict.next_root], 1)
        read = torch.cat([counts, verdict.path, tree.tokens.gather(1, verdict.path), tree.ranks.gather(1, verdict.path)], 1).tolist()
        width = verdict.path.shape[1]
        accepted, depths, nodes, next_roots = (list(column) for column in zip(*(row[:4] for row in read)))
        paths, codes, ranks = ([row[4 + i * width : 4 + (i + 1) * width] for row in read] for i in range(3))
        for image, position in enumerate(self._positions):
            if position < self.length - 1:
                new = codes[image][1 : accepted[image] + 1] + [next_roots[image]]
                self.codes[image, position + 1 : position + 1 + len(new)] = torch.tensor(new)
        contiguous = all(path[: a + 1] == list(range(a + 1)) for path, a in zip(paths, accepted))
        if not contiguous:
            kept = self._rows.spread(verdict.path[:, : max(accepted) + 1])
            self._cache.compact(self._rows.spread(torch.tensor(starts, device=kept.device)), kept)
        self._root = verdict.next_root
        self._proposer.observe(Verified(tree, features, perturbed, verdict, starts, list(self._positions), accepted, contiguous))
        return accepted, depths, nodes, [row[1:] for row in ranks]
