"""The EAGLE feature drafter: one decoder layer that extrapolates the target's final feature.

Layout of ``jadohu/anole_drafter`` (LANTERN, arXiv 2410.03355; EAGLE, arXiv 2401.15077): stream element i is the pair
(target feature of token i, embedding of token i + 1), fused by a linear layer. The target's head reads the output.
LANTERN's drafters for LlamaGen (``jadohu/llamagen_drafter``, ``jadohu/llamagen2_drafter``) are rotated by the grid cell
of the pair's token and attend to all pairs of the condition, padding included.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.cache import KVCache
from ..models.config import DecoderConfig
from ..models.layers import Decoder, Layer, LayerContext, product, without_cudnn
from ..models.rotary import Rope, rope_tables
from ..models.rows import AttentionMetadata, BatchRows, Roots
from ..models.target import guidance_at
from ..policies import Context, Shape
from ..rules.noise import Noise
from ..rules.settings import Sampling
from ..rules.tree import CandidatePool, DraftTree, chain
from .base import Drafter, Prefill, Proposer, Shapes, Verified
from .limits import Limits, PublishedTree


class Pairing(NamedTuple):
    """What a feature is fed with. late: its own token, not the next one. codes: codes as ids of image tokens.

    EAGLE feeds the next token. The public training code for Anole and Lumina-mGPT pairs a feature with its own token,
    and forgets the offset of image ids.
    """

    late: bool = False
    codes: bool = False


class EagleDrafter(nn.Module, Drafter):
    """``out = layer(fc(concat(embedding[token], feature)))``, without a final norm."""

    pairing = Pairing()
    gpu_defaults = {"depth": 5, "width": 4, "nodes": 31, "depth_min": 2, "depth_max": 8, "width_max": 8}

    def __init__(self, config: DecoderConfig, input_norm: bool):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.fc = nn.Parameter(torch.empty(2 * config.hidden_size, config.hidden_size))
        self.fc_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.layer = Layer(config, input_norm)

    @property
    def network(self) -> nn.Module:
        return self

    def forward(self, ids: Tensor, features: Tensor, step: AttentionMetadata, cache: KVCache, rope: Rope) -> Tensor:
        """ids [R, n], features [R, n, h] -> extrapolated features [R, n, h]."""
        x = torch.cat([F.embedding(ids, self.embedding), features.to(self.embedding.dtype)], -1)
        x = product(x, self.fc) + self.fc_bias
        with without_cudnn():
            return self.layer(x.flatten(0, 1), LayerContext.of(step, rope, self.config), cache.data[0]).view(x.shape)

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> EagleProposer:
        return EagleProposer(self, context, rows, noise)

    def uncommitted(self, largest: Shape) -> int:
        return largest.depth * largest.width  # every level feeds at most ``width`` nodes

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        return KVCache.num_bytes(self.config, rows, cache_length, itemsize)


def paired_ids(pairing: Pairing, ids: Tensor, image_ids: Tensor) -> Tensor:
    """Ids [R, n] that n features are fed with. ids: [R, n + 1], of their tokens and of the one behind the last."""
    ids = ids[:, :-1] if pairing.late else ids[:, 1:]
    if not pairing.codes:
        return ids
    code = ids - image_ids[0]
    return torch.where((code >= 0) & (code < len(image_ids)), code, ids)


def draft_logits(
    decoder: Decoder, out: Tensor, sampling: Sampling, plus: Tensor | None, guidance: Tensor | float
) -> Tensor:
    """Outputs [R, m, h] of a drafter -> the logits [B, m, V] that rank drafts: guided, over the temperature, none cut.

    decoder: the target's. plus: [B, m or 1, V], added to them: the grammar of their positions and, in drafting, noise.
    guidance: its scale there, [..., 1] or one for all.
    """
    z = decoder.logits(out.to(decoder.wide_dtype), guidance)
    if sampling.temperature not in (0, 1):
        z = z / sampling.temperature
    if plus is None:
        return z
    return (z if z.shape[-1] == plus.shape[-1] else F.pad(z, (0, 1))) + plus  # a grammar has the end of a row


class EagleProposer(Proposer):
    """Grows one draft tree per round and image: EAGLE-2's expansion (arXiv 2406.16858) over keyed noise.

    ``root_feature`` [R, 1, h] is the feature that the network expects of the next root. It has read all pairs before.
    """

    by_row = ("root_feature", "_cache")
    root_feature: Tensor

    def __init__(self, drafter: EagleDrafter, context: Context, rows: BatchRows, noise: Noise | None):
        self._drafter = drafter
        self._decoder = context.target.decoder
        self._sees_padding = drafter.config.grid_rope is not None
        super().__init__(context, rows, noise)
        if context.settings.proposal != "coupled":
            self.noise = None
        like = torch.empty(0, dtype=self._decoder.wide_dtype, device=self._decoder.embedding.device)
        self._grammar, self._length = context.target.grammar(like), context.target.length
        # of the last position, which nearly all others have, too: what is drafted is checked with their own
        self._guidance = guidance_at(context.target.guidance(context.sampling.guidance, like), torch.tensor([-1]))
        self._cache = KVCache(drafter.config, self.rows.count, len(self.rows.columns), drafter.embedding)
        self._rope = rope_tables(drafter.config, drafter.embedding)

    def set_rows(self, rows: BatchRows) -> None:
        super().set_rows(rows.unhidden() if self._sees_padding else rows)

    # ---- what the target has read -----------------------------------------------------------

    def begin(self, prefill: Prefill) -> None:
        """Pair the feature of every token that was read with the token after it."""
        step = self.rows.prefill() if self._sees_padding else prefill.step
        ids = torch.cat([self.rows.ids[:, :1], prefill.ids], 1)
        ids = paired_ids(self._drafter.pairing, ids, self._decoder.image_ids)
        self.root_feature = self._run(ids, prefill.features, step)[:, -1:].clone()

    def on_verified(self, verified: Verified) -> None:
        """Pair the features of the accepted path with the tokens that follow them."""
        tokens = torch.cat([verified.tree.tokens[:, :1], verified.following], 1)
        features = self.rows.gather(verified.features, verified.acceptance.path)
        out = self.read_ahead(tokens, features, self.step_ahead(verified.roots, features.shape[1]))
        self.root_feature.copy_(self.rows.gather(out, verified.acceptance.accepted[:, None]))

    def catch_up(self, tokens: Tensor, features: Tensor, first: Roots, counts: Tensor) -> None:
        """Read pairs that are late, ``counts`` [B, 1] of each image. tokens, features: as for :meth:`read_ahead`.

        first: where the first pairs are.
        """
        out = self.read_ahead(tokens, features, self.step_ahead(first, features.shape[1]))
        out = self.rows.gather(out, (counts - 1).clamp_min(0))
        late = self.rows.spread(counts > 0)[..., None]
        self.root_feature.copy_(torch.where(late, out, self.root_feature))

    def step_ahead(self, roots: Roots, count: int) -> AttentionMetadata:
        """A forward of so many successive tokens from the roots on."""
        return self.rows.causal_step(roots, count)

    def read_ahead(self, tokens: Tensor, features: Tensor, step: AttentionMetadata) -> Tensor:
        """Feed features [R, m, h] of successive tokens, by a :meth:`step_ahead`. Returns outputs [R, m, h].

        tokens: [B, m + 1], these tokens and the one behind the last.
        """
        return self._run(self._fed(tokens[:, 1:], tokens[:, :-1]), features, step)

    def read_tree(self, verified: Verified) -> Tensor:
        """Feed the pairs of all drafts of a verified tree, and that of the new root; keep those of the accepted paths.

        Returns the features [R, N + 1, h] that the network expected of the tree's nodes.
        """
        tree, acceptance = verified.tree, verified.acceptance
        accepted, last = acceptance.accepted[:, None], acceptance.last[:, None]
        parents = torch.cat([tree.parents[:, 1:], last], 1)
        lineage = tree.ancestors.gather(1, last[..., None].expand(-1, -1, tree.size))[..., 1:]
        own = F.pad(torch.cat([tree.ancestors[:, 1:, 1:], lineage], 1), (0, 1))
        own[:, -1, -1] = True
        offsets = torch.cat([(tree.depths[:, 1:] - 1).clamp_min(0), accepted], 1)
        following = torch.cat([tree.tokens[:, 1:], acceptance.next_root[:, None]], 1)
        ids = self._fed(following, tree.tokens.gather(1, parents))
        pairs = self.rows.gather(verified.features, parents)
        out = self._run(ids, pairs, self.rows.step(verified.roots, 0, offsets, own))
        path = F.pad((acceptance.path[:, 1:] - 1).clamp_min(0), (0, 1)).scatter(1, accepted, tree.size - 1)
        starts = self.rows.spread(verified.roots.at) + self.rows.cache_offset
        self._cache.compact(starts, self.rows.spread(path))
        expected = torch.cat([self.root_feature, out[:, :-1]], 1)
        self.root_feature.copy_(out[:, -1:])
        return expected

    def _fed(self, codes: Tensor, before: Tensor) -> Tensor:
        """Ids [R, n] that features are fed with: the ``codes`` [B, n] after them, or their own, those ``before``."""
        codes = before if self._drafter.pairing.late else codes
        return self.rows.spread(codes if self._drafter.pairing.codes else self._decoder.image_ids[codes])

    def _run(self, ids: Tensor, features: Tensor, step: AttentionMetadata) -> Tensor:
        self.forwards += 1
        return self._drafter(ids, features, step, self._cache, self._rope)

    # ---- growing a tree ---------------------------------------------------------------------

    def children(self, out: Tensor, noise: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """Scores and codes [B, m, width] of the best children of m nodes, whose noise is [B, m or 1, V].

        Scores are log-softmax of the logits that rank them. With noise on these, they are nearly calibrated acceptance
        probabilities.
        """
        z = draft_logits(self._decoder, out, self.context.sampling, noise, self._guidance)
        scores, codes = z.log_softmax(-1).topk(min(width, z.shape[-1]), -1)
        return scores, codes

    def noise_ahead(self, roots: Roots, depth: int) -> Tensor | None:
        """Noise and grammar of the ``depth`` positions after each root, [B, depth, V], to be added to logits."""
        if self._grammar is None and self.noise is None:
            return None
        at = (roots.at + 1 + torch.arange(depth, device=roots.at.device)).clamp_max(self._length - 1)
        noise = torch.zeros((), device=at.device) if self.noise is None else self.noise.at(at)
        return noise if self._grammar is None else noise + self._grammar[at % len(self._grammar)]

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        if shapes.depth == 0:
            return chain(roots.codes[:, None], self.root_feature.new_zeros(len(roots.codes), 0))
        noise = self.noise_ahead(roots, shapes.depth)
        by_level: list[Tensor | None] = [None] * shapes.depth if noise is None else [*noise.split(1, 1)]
        if shapes.tree:
            return self._grow_tree(roots, by_level, PublishedTree(shapes, self.context), shapes)
        limits = Limits(shapes, self.context)
        if shapes.width == 1:
            return self._grow_chain(roots, by_level[: shapes.nodes], limits)
        return self._grow_tree(roots, by_level, limits, shapes)

    def _grow_chain(self, roots: Roots, noise: list[Tensor | None], limits: Limits) -> DraftTree:
        """Width 1: no beam, no candidates to rank, no mask to build."""
        out, tokens = self.root_feature, [roots.codes[:, None]]
        scores: list[Tensor] = []
        total: Tensor | None = None
        for level, perturbation in enumerate(noise, start=1):
            score, token = self.children(out, perturbation, 1)
            total = limits.candidates(score if total is None else score + total, level)
            tokens.append(token[:, 0])
            scores.append(total[:, 0])
            if level == len(noise) or limits.end(total):
                break
            step = self.rows.step(roots, level - 1, level - 1, None)
            out = self._run(self._fed(tokens[-1], tokens[-2]), out, step)
        return chain(torch.cat(tokens, 1), torch.cat(scores, 1))

    def _grow_tree(self, roots: Roots, noise: list[Tensor | None], limits: Limits, shapes: Shapes) -> DraftTree:
        """Level by level: the nodes of a beam get ``width`` children each. Then the best nodes of all are kept."""
        pool, out = CandidatePool(), self.root_feature
        fed, beam_scores = roots.codes[:, None], None
        parents = torch.zeros_like(fed)
        batch = torch.arange(len(fed), device=fed.device)[:, None]
        seen = torch.zeros(len(fed), 1, 0, dtype=torch.bool, device=fed.device)  # uncommitted slots that each node sees
        for level, perturbation in enumerate(noise, start=1):
            scores, tokens = self.children(out, perturbation, shapes.width)
            scores = limits.candidates(scores if beam_scores is None else scores + beam_scores[..., None], level)
            first = pool.add(tokens, scores, parents)
            if level == len(noise):
                break
            beam_scores, beam = limits.beam(scores.flatten(1), level, pool)
            count = beam.shape[1]
            if count == 0:
                break
            parents, parent = beam + first, beam // scores.shape[-1]
            self_sight = torch.eye(count, dtype=torch.bool, device=fed.device).expand(len(fed), -1, -1)
            seen = torch.cat([seen[batch, parent], self_sight], -1)
            step = self.rows.step(roots, seen.shape[-1] - count, level - 1, seen)
            before, fed = fed.gather(1, parent), tokens.flatten(1).gather(1, beam)
            out = self._run(self._fed(fed, before), self.rows.gather(out, parent), step)
        nodes = self.context.size(pool.usable, min(shapes.nodes, pool.count))
        return pool.rerank(roots.codes, nodes, shapes.budgets)
