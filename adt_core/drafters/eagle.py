"""The EAGLE feature drafter: one decoder layer that extrapolates the target's final feature.

Layout of ``jadohu/anole_drafter`` (LANTERN, arXiv 2410.03355; EAGLE, arXiv 2401.15077): stream element i is the pair
(target feature of token i, embedding of token i + 1), fused by a linear layer; the target's head reads the output.

LANTERN's drafters for LlamaGen (``jadohu/llamagen_drafter``, ``jadohu/llamagen2_drafter``) are rotated by the grid cell of the pair's token and attend
to all pairs of the condition, padding included.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AdtError
from ..models.cache import KVCache
from ..models.checkpoint import Check, Checkpoint, Entry, check_entries, fill, read_json, resolve, same
from ..models.config import DecoderConfig
from ..models.graphs import graphed
from ..models.layers import Layer, product, rope_tables
from ..models.layout import decoder_config, layer_entries, unpaired
from ..models.rows import Rows, Step
from ..models.target import Target
from ..policies.shape import Drafting, TreeShape
from ..rules.sampling import Sampling
from ..rules.tree import CandidatePool, DraftTree, chain
from .base import Verified
from .static import static_tree

PAIRING_FILE = "pairing.json"
"""Where ``check-drafter`` records, in the drafter's folder, how it was trained."""
LLAMAGEN_GRIDS = {"t2i": (119, 16), "t2i2": (119, 32)}
"""``grid_rope`` by the ``input_type`` in the configurations of LANTERN's drafters for LlamaGen."""


class Pairing(NamedTuple):
    """What a feature is fed with. late: its own token, not the next one. codes: image tokens have their codes for ids, not those of the vocabulary.

    EAGLE feeds the next token. The public training code for Anole and Lumina-mGPT pairs a feature with its own token, and forgets the offset of image ids.
    """

    late: bool = False
    codes: bool = False


class EagleDrafter(nn.Module):
    """``out = layer(fc(concat(embedding[token], feature)))``, without a final norm."""

    default = Drafting()
    pairing = Pairing()

    def __init__(self, config: DecoderConfig, input_norm: bool):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.fc = nn.Parameter(torch.empty(2 * config.hidden_size, config.hidden_size))
        self.fc_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.layer = Layer(config, input_norm)

    def forward(self, ids: Tensor, features: Tensor, step: Step, cache: KVCache, rope: tuple[Tensor, Tensor]) -> Tensor:
        """ids [R, n], features [R, n, h] -> extrapolated features [R, n, h]."""
        x = torch.cat([F.embedding(ids, self.embedding), features.to(self.embedding.dtype)], -1)
        x = product(x, self.fc) + self.fc_bias
        cos, sin = (table[step.positions].unsqueeze(2) for table in rope)
        return self.layer(x, cos, sin, step, cache.data[0])

    def proposer(
        self, target: Target, rows: Rows, images: int, sampling: Sampling, drafting: Drafting, noise: Tensor | None
    ) -> EagleProposer:
        return EagleProposer(self, target, rows, sampling, drafting, noise)

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        return KVCache.num_bytes(self.config, rows, slots, itemsize)


def load_eagle(
    path: str | Path, target: Target, check: Check | None = None, device: torch.device | None = None
) -> EagleDrafter:
    """Load the drafter at ``path`` ("bundled" or a folder) for ``target``, in its dtype and on ``device``, or where the target is.

    Raises AdtError if the files are missing or damaged, or the drafter was made for another target.
    """
    checkpoint, ours = Checkpoint(resolve(path, "drafter")), target.decoder.config
    if "fc.weight" not in checkpoint.names or "layers.0.self_attn.q_proj.weight" not in checkpoint.names:
        raise AdtError(f"drafter {str(path)!r} has no fc.weight and layers.0.*; an EAGLE drafter was expected.")
    width, tokens = checkpoint.shape("fc.weight")[0], checkpoint.shape("embed_tokens.weight")[0]
    if width != ours.hidden_size or tokens != ours.vocab_size:
        raise AdtError(
            f"drafter {str(path)!r} has width {width} and {tokens} tokens, but {target.name} has width "
            f"{ours.hidden_size} and {ours.vocab_size} tokens; choose the drafter that was trained for this target."
        )
    drafter, entries = describe(checkpoint, ours)
    if drafter.config.qk_norm != ours.qk_norm or drafter.config.grid_rope != grid_of_pairs(ours):
        raise AdtError(
            f"drafter {str(path)!r} was trained for another family or another size of image than {target.name}; "
            "choose the drafter that was trained for this target."
        )
    check_entries(entries, checkpoint)
    drafter.to(target.decoder.dtype).to_empty(device=device or target.decoder.embedding.device).requires_grad_(
        False
    ).eval()
    fill(_entries(drafter, checkpoint), checkpoint, check)
    recorded = checkpoint.folder / PAIRING_FILE
    if recorded.is_file():
        drafter.pairing = Pairing(
            **{name: bool(value) for name, value in read_json(recorded).items() if name in Pairing._fields}
        )
    return drafter


def describe(checkpoint: Checkpoint, target: DecoderConfig | None = None) -> tuple[EagleDrafter, list[Entry]]:
    """The drafter of a checkpoint without its weights, for a target of the shape ``target``, and where they come from.

    What its configuration leaves unsaid is as in the target.
    """
    said, names = checkpoint.config, checkpoint.names
    grid = LLAMAGEN_GRIDS.get(said.get("input_type"), target and grid_of_pairs(target))
    if target is not None:
        said = {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": target.num_heads,
            "num_key_value_heads": target.num_kv_heads,
            "rms_norm_eps": target.rms_norm_eps,
            "rope_theta": target.rope_theta,
            **said,
        }
    config = decoder_config(said, checkpoint.path)
    config = replace(
        config,
        qk_norm="layers.0.self_attn.q_norm.weight" in names,
        max_positions=(target or config).max_positions,
        grid_rope=grid,
    )
    with torch.device("meta"):
        drafter = EagleDrafter(config, input_norm="layers.0.input_layernorm.weight" in names)
    return drafter, _entries(drafter, checkpoint)


def grid_of_pairs(target: DecoderConfig) -> tuple[int, int] | None:
    """``grid_rope`` of a target's drafter: a pair has the position of its feature, and is rotated by the cell of its token, which comes one later."""
    return target.grid_rope and (target.grid_rope[0] - 1, target.grid_rope[1])


def _entries(drafter: EagleDrafter, checkpoint: Checkpoint) -> list[Entry]:
    return [
        same(drafter.embedding, "embed_tokens.weight"),
        same(drafter.fc, "fc.weight", transpose=True),
        same(drafter.fc_bias, "fc.bias"),
        *layer_entries(
            drafter.layer,
            checkpoint,
            "layers.0",
            unpaired(drafter.config.head_dim) if drafter.config.grid_rope else None,
        ),
    ]


def paired_ids(pairing: Pairing, ids: Tensor, image_ids: Tensor) -> Tensor:
    """What n features are fed with: ids [R, n + 1] of their tokens and of the one behind the last -> [R, n]."""
    ids = ids[:, :-1] if pairing.late else ids[:, 1:]
    if not pairing.codes:
        return ids
    code = ids - image_ids[0]
    return torch.where((code >= 0) & (code < len(image_ids)), code, ids)


class EagleProposer:
    """Grows one draft tree per round for a batch of images: EAGLE-2 expansion over keyed noise."""

    def __init__(
        self,
        drafter: EagleDrafter,
        target: Target,
        rows: Rows,
        sampling: Sampling,
        drafting: Drafting,
        noise: Tensor | None,
    ):
        """noise: [B, T, V], the very table the target is sampled with; None at temperature 0."""
        self._drafter, self._decoder = drafter, target.decoder
        self._read = graphed(drafter, drafter.embedding.device)
        self._sees_padding = drafter.config.grid_rope is not None
        self._see(rows)
        self._grammar, self._length = (
            target.grammar(torch.empty(0, dtype=self._decoder.wide_dtype, device=self._decoder.embedding.device)),
            target.length,
        )
        self._sampling, self._drafting = sampling, drafting
        self._noise = noise if drafting.proposal == "coupled" else None
        self._cache = KVCache(drafter.config, rows.count, len(rows.columns), drafter.embedding)
        self._rope = rope_tables(drafter.config, drafter.embedding)
        self._pending: tuple[
            Tensor, Tensor, list[int], list[int]
        ]  # features, ids; first slot, and index of the last pair, of each image
        self.forwards = 0

    def _see(self, rows: Rows) -> None:
        self._rows = rows.unhidden() if self._sees_padding else rows

    def begin(self, features: Tensor, ids: Tensor, step: Step, z: Tensor, position: int) -> None:
        """The feature of every token that was read is paired with the token after it. All pairs but the last are fed at once."""
        step = self._rows.prefill() if self._sees_padding else step
        ids = paired_ids(self._drafter.pairing, torch.cat([self._rows.ids[:, :1], ids], 1), self._decoder.image_ids)
        last = ids.shape[1] - 1
        if last > 0:
            self._run(
                ids[:, :last],
                features[:, :last],
                Step(step.positions[:, :last], slice(0, last), step.mask[..., :last, :last]),
            )
        self._pending = (features[:, last:], ids[:, last:], [last] * len(z), [0] * len(z))

    def keep(self, images: Tensor, rows: Rows, noise: Tensor | None) -> None:
        features, ids, starts, last = self._pending
        numbers, kept = self._rows.of(images, len(starts)), images.tolist()
        self._pending = (features[numbers], ids[numbers], [starts[i] for i in kept], [last[i] for i in kept])
        self._cache.keep(numbers)
        self._see(rows)
        self._noise = None if self._noise is None else noise

    def admit(self, images: Tensor, others: EagleProposer, rows: Rows) -> None:
        features, ids, starts, last = self._pending
        new_features, new_ids, new_starts, _ = others._pending  # a single pair
        numbers = self._rows.of(images, len(starts))
        features, ids, starts, last = features.clone(), ids.clone(), list(starts), list(last)
        features[numbers, :1], ids[numbers, :1] = new_features, new_ids
        for image, start in zip(images.tolist(), new_starts):
            starts[image], last[image] = start, 0
        self._pending = (features, ids, starts, last)
        self._cache.admit(numbers, others._cache)
        self._see(rows)

    def observe(self, verified: Verified) -> None:
        """Pair the features of the accepted path with the tokens that follow them; they are fed in the next round."""
        features, longest, accepted = verified.features, max(verified.accepted), verified.accepted
        if verified.contiguous:
            features = features.narrow(1, 0, longest + 1)
        else:
            index = self._rows.spread(verified.verdict.path[:, : longest + 1])[..., None]
            features = features.gather(1, index.expand(-1, -1, features.shape[-1]))
        following = verified.following()
        ids = self._fed(following, torch.cat([verified.tree.tokens[:, :1], following[:, :-1]], 1))
        self._pending = (features, ids, verified.starts, accepted)

    def _fed(self, codes: Tensor, before: Tensor) -> Tensor:
        """Ids [R, n] of what features are fed with: the ``codes`` [B, n] that follow them, or their own, which stand ``before`` those."""
        codes = before if self._drafter.pairing.late else codes
        return self._rows.spread(codes if self._drafter.pairing.codes else self._decoder.image_ids[codes])

    def _run(self, ids: Tensor, features: Tensor, step: Step) -> Tensor:
        self.forwards += 1
        return self._read(ids, features, step=step, cache=self._cache, rope=self._rope)

    def children(self, out: Tensor, noise: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """Scores and codes [B, m, width] of the best children of m nodes, whose noise is [B, m or 1, V].

        Scores are log-softmax of the logits that rank them; for coupled proposals those carry the noise,
        which makes them nearly calibrated acceptance probabilities.
        """
        z = self._decoder.logits(out.to(self._decoder.wide_dtype), self._sampling.guidance)
        if self._sampling.temperature not in (0, 1):
            z = z / self._sampling.temperature
        if noise is not None:
            z = (z if self._grammar is None else F.pad(z, (0, 1))) + noise
        return z.log_softmax(-1).topk(min(width, z.shape[-1]), -1)

    def catch_up(self) -> Tensor:
        """Feed the pending pairs; the output of each image's last pair, [R, 1, h]."""
        features, ids, starts, last = self._pending
        out = self._run(ids, features, self._rows.causal_step(starts, ids.shape[1]))
        if len(set(last)) == 1:
            return out.narrow(1, last[0], 1)
        index = self._rows.spread(torch.tensor(last, device=out.device))
        return out[torch.arange(len(out), device=out.device), index][:, None]

    def noise_ahead(self, positions: list[int], depth: int) -> Tensor | None:
        """What is added to the logits of the next ``depth`` raster positions after each root, noise and grammar: [B, depth, V]; None for nothing."""
        if self._grammar is None and self._noise is None:
            return None
        if self._grammar is None and len(set(positions)) == 1 and positions[0] + depth < self._length:
            return self._noise[:, positions[0] + 1 : positions[0] + 1 + depth]
        rows = [[min(p + level, self._length - 1) for level in range(1, depth + 1)] for p in positions]
        at = torch.tensor(rows, device=self._rows.device)
        noise = 0 if self._noise is None else self._noise[torch.arange(len(at), device=at.device)[:, None], at]
        return noise if self._grammar is None else noise + self._grammar[at % len(self._grammar)]

    def _noise_by_level(self, positions: list[int], depth: int) -> list[Tensor | None]:
        """The same level by level, [B, 1, V] each."""
        noise = self.noise_ahead(positions, depth)
        return [None] * depth if noise is None else list(noise.split(1, 1))

    def read_tree(self, verified: Verified) -> Tensor:
        """Feed the pairs of all drafts of a verified tree, and that of the new root, and keep those of the accepted paths.

        Returns what the drafter made of them: features [R, N + 1, h] of the drafts and, at last, of the new root.
        """
        tree, verdict, features = verified.tree, verified.verdict, verified.features
        accepted = verdict.accepted[:, None]
        last = verdict.last[:, None]
        parents = torch.cat([tree.parents[:, 1:], last], 1)
        lineage = tree.ancestors.gather(1, last[..., None].expand(-1, -1, tree.size))[..., 1:]
        own = F.pad(torch.cat([tree.ancestors[:, 1:, 1:], lineage], 1), (0, 1))
        own[:, -1, -1] = True
        offsets = torch.cat([(tree.depths[:, 1:] - 1).clamp_min(0), accepted], 1)
        following = torch.cat([tree.tokens[:, 1:], verdict.next_root[:, None]], 1)
        ids = self._fed(following, tree.tokens.gather(1, parents))
        pairs = features.gather(1, self._rows.spread(parents)[..., None].expand(-1, -1, features.shape[-1]))
        out = self._run(ids, pairs, self._rows.step(verified.starts, 0, offsets, own))
        kept = (verdict.path[:, 1 : max(verified.accepted) + 2] - 1).clamp_min(0)
        kept = F.pad(kept, (0, max(verified.accepted) + 1 - kept.shape[1])).scatter(1, accepted, tree.size - 1)
        self._cache.compact(
            self._rows.spread(torch.tensor(verified.starts, device=kept.device)), self._rows.spread(kept)
        )
        return out

    def read_ahead(self, tokens: Tensor, features: Tensor, starts: list[int]) -> Tensor:
        """Feed the features [R, m, h] of m successive tokens, with the m that follow the first of tokens [B, m + 1], without keeping them: [R, m, h]."""
        return self._run(
            self._fed(tokens[:, 1:], tokens[:, :-1]), features, self._rows.causal_step(starts, tokens.shape[1] - 1)
        )

    def propose(self, root: Tensor, starts: list[int], positions: list[int], shapes: list[TreeShape]) -> DraftTree:
        depth, width = max(s.depth for s in shapes), max(s.width for s in shapes)
        limits = _Limits(shapes, self._drafting, root.device)
        noise, out = self._noise_by_level(positions, depth), self.catch_up()
        if self._drafting.static:
            return self._grow_static(root, starts, noise, out, shapes)
        if width == 1:
            return self._grow_chain(root, starts, noise[: self._drafting.nodes], out, limits)
        return self._grow_tree(root, starts, noise, out, limits, width)

    def _grow_chain(
        self, root: Tensor, starts: list[int], noise: list[Tensor | None], out: Tensor, limits: _Limits
    ) -> DraftTree:
        """Width 1: no beam, no candidates to rank, no mask to build."""
        tokens, scores, total = [root[:, None]], [], None
        for level, perturbation in enumerate(noise, start=1):
            score, token = self.children(out, perturbation, 1)
            total = limits.candidates(score if total is None else score + total, level)
            tokens.append(token[:, 0])
            scores.append(total[:, 0])
            if level == len(noise) or limits.hopeless(total):
                break
            ids = self._fed(tokens[-1], tokens[-2])
            out = self._run(ids, out, self._rows.step(starts, level - 1, level - 1, None))
        return chain(torch.cat(tokens, 1), torch.cat(scores, 1))

    def _grow_tree(
        self, root: Tensor, starts: list[int], noise: list[Tensor | None], out: Tensor, limits: _Limits, width: int
    ) -> DraftTree:
        """Level by level: the best ``width`` nodes of a level get ``width`` children each; then the best nodes of all are kept."""
        pool, beam_scores, parents = CandidatePool(), None, torch.zeros_like(root)[:, None]
        batch = torch.arange(len(root), device=root.device)[:, None]
        seen = torch.zeros(len(root), 1, 0, dtype=torch.bool, device=root.device)  # uncommitted slots each node sees
        fed = root[:, None]
        for level, perturbation in enumerate(noise, start=1):
            scores, tokens = self.children(out, perturbation, width)
            scores = limits.candidates(scores if beam_scores is None else scores + beam_scores[..., None], level)
            first = pool.add(tokens, scores, parents)
            if level == len(noise):
                break
            beam_scores, beam = limits.beam(scores.flatten(1), width, pool)
            count = beam.shape[1]
            if count == 0:
                break
            parents, parent = beam + first, beam // scores.shape[-1]
            self_sight = torch.eye(count, dtype=torch.bool, device=root.device).expand(len(root), -1, -1)
            seen = torch.cat([seen[batch, parent], self_sight], -1)
            step = self._rows.step(starts, seen.shape[-1] - count, level - 1, seen)
            before, fed = fed.gather(1, parent), tokens.flatten(1).gather(1, beam)
            features = out.gather(1, self._rows.spread(parent)[..., None].expand(-1, -1, out.shape[-1]))
            out = self._run(self._fed(fed, before), features, step)
        return pool.rerank(root, self._drafting.nodes)

    def _grow_static(
        self, root: Tensor, starts: list[int], noise: list[Tensor | None], out: Tensor, shapes: list[TreeShape]
    ) -> DraftTree:
        """A published tree: a node of sibling rank r holds its parent's r-th best child."""
        tree, batch = static_tree(self._drafting.static, root.device), len(root)
        tokens, scores = [root[:, None]], [torch.zeros(batch, 1, dtype=self._decoder.wide_dtype, device=root.device)]
        fed = root[:, None]
        for level, (perturbation, plan) in enumerate(zip(noise, tree.levels)):
            if level > 0:
                count, seen = plan.seen.shape
                step = self._rows.step(starts, seen - count, level - 1, plan.seen.expand(batch, -1, -1))
                before, fed = fed[:, plan.from_fed], tokens[-1][:, plan.fed]
                out = self._run(self._fed(fed, before), out[:, plan.from_fed], step)
            score, token = self.children(out, perturbation, plan.width)
            tokens.append(token[:, plan.parent, plan.rank])
            scores.append(scores[-1][:, plan.fed][:, plan.parent] + score[:, plan.parent, plan.rank])
        tokens, scores = torch.cat(tokens, 1), torch.cat(scores, 1)
        parents, depths, ranks = (
            values[:, : tokens.shape[1]].expand(batch, -1) for values in (tree.parents, tree.depths, tree.ranks)
        )
        valid = depths <= torch.tensor([[shape.depth] for shape in shapes], device=root.device)
        ancestors = tree.ancestors[:, : tokens.shape[1], : tokens.shape[1]].expand(batch, -1, -1)
        return DraftTree(
            tokens,
            parents * valid,
            depths * valid,
            ranks,
            scores.masked_fill(~valid, -math.inf),
            valid,
            ancestors,
            len(noise),
        )


class _Limits:
    """Which candidates and beam nodes of a growing tree may be used: each image's own shape, and confidence pruning."""

    def __init__(self, shapes: list[TreeShape], drafting: Drafting, device: torch.device):
        self._nodes = drafting.nodes
        self._keep, self._expand = (
            math.log(p) if p > 0 else -math.inf for p in (drafting.keep_above, drafting.expand_above)
        )
        self._on_cpu = device.type == "cpu"
        self._depths = self._widths = None
        if len(set(shapes)) > 1:
            self._depths, self._widths = (
                torch.tensor([s[i] for s in shapes], device=device)[:, None, None] for i in range(2)
            )

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        """scores [B, m, k] of one level, with -inf where a candidate may not be used."""
        if self._widths is not None:
            rank = torch.arange(scores.shape[-1], device=scores.device)
            scores = scores.masked_fill((rank >= self._widths) | (level > self._depths), -math.inf)
        return scores if self._keep == -math.inf else scores.masked_fill(scores < self._keep, -math.inf)

    def hopeless(self, scores: Tensor) -> bool:
        """On a CPU: no chain of the batch goes on below ``scores``, so that drafting can stop here."""
        pruned = self._keep > -math.inf or self._expand > -math.inf or self._widths is not None
        return self._on_cpu and pruned and not bool((scores > self._expand).any())

    def beam(self, scores: Tensor, width: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """The candidates of a level, flattened to [B, n], that get children: their scores and indices."""
        best, beam = scores.topk(min(width, scores.shape[1]), 1)
        if self._widths is not None:
            rank = torch.arange(best.shape[1], device=scores.device)
            best = best.masked_fill(rank >= self._widths[..., 0], -math.inf)
        if self._expand > -math.inf:
            best = best.masked_fill(best < self._expand, -math.inf)
        if not self._on_cpu:
            return best, beam
        # Without a synchronisation to fear: leave out what can no longer change the tree. Exact, not an approximation.
        useful = best > (pool.nth_best(self._nodes) if pool.count >= self._nodes else -math.inf)
        count = int(useful.sum(1).max())
        return best[:, :count], beam[:, :count]
