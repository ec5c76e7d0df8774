"""EAGLE drafter: a network with one decoder layer that predicts the target's next feature.

A *feature* is the target's final hidden state of a token, which is the input of the target's head. Element i of the
network's input is the *pair* (feature of token i, embedding of token i + 1), combined by a linear layer. The output of
the network is a prediction of the feature of token i + 1. From this prediction, the target's head computes the logits
of token i + 2. (EAGLE, arXiv 2401.15077.)

The network has the same layout as `jadohu/anole_drafter` (LANTERN, arXiv 2410.03355). LANTERN's drafters for LlamaGen
(`jadohu/llamagen_drafter`, `jadohu/llamagen2_drafter`) differ from it in two ways. The rotary position of a pair is the
grid cell of token i + 1. And the network attends to all pairs of the condition (LlamaGen's prompt), padding included.

Dimensions: B images; R batch rows (2 * B with guidance, else B); n, m: numbers of pairs or nodes; h: length of a
feature; V codes; N drafts per tree.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.cache import KVCache
from ..models.config import DecoderConfig
from ..models.layers import Decoder, Layer, LayerContext, product, without_cudnn
from ..models.rotary import rope_tables
from ..models.rows import AttentionMetadata, BatchRows, Roots
from ..models.target import grammar_at, guidance_at
from ..policies import Context, Shape
from ..policies.fixed import STATIC_TREES
from ..rules.noise import Noise
from ..rules.sampling import process_logits
from ..rules.tree import CandidatePool, DraftTree, chain
from ..settings import Sampling
from .base import Drafter, PlainRead, Prefill, Proposer, TreeSizes, Verified
from .half_head import half_head


class Pairing(NamedTuple):
    """Pairing of features and token ids when a drafter was trained.

    EAGLE pairs the feature of a token with the id of the next token. The public training code for Anole and Lumina-mGPT
    differs in two ways.

    Attributes:
        late: Whether the feature of a token is paired with the same token instead of the next token.
        codes: Whether the codes of image tokens are used instead of token ids, which are larger by an offset.
    """

    late: bool = False
    codes: bool = False


class EagleDrafter(nn.Module, Drafter):
    """Drafter network: `out = layer(fc(concat(embedding[token], feature)))`, without a final norm."""

    pairing = Pairing()
    # Chosen by counting rounds and network calls (docs/results.md). A tree with its root fills one tile of a
    # GPU's matrix product: 2 * 32 rows with guidance, 64 rows without. A full tile costs as much as one node
    # (docs/gpu.md).
    gpu_defaults = {"depth": 8, "width": 8, "drafts": 31}
    gpu_method_defaults = {
        # On the diagonal between the bounds there are 8 shapes, so a GPU captures few graphs.
        "adt-tree": {"beta": 0.7, "width": 7, "depth_min": 5, "depth_max": 12, "width_min": 3, "width_max": 10},
        "predicted": {"beta": 0.7, "depth_min": 5, "depth_max": 12, "width_min": 8, "width_max": 8},
    }
    unguided_gpu_defaults = {"drafts": 63}

    def __init__(self, config: DecoderConfig, input_norm: bool):
        """Make the network with uninitialised weights. With `input_norm`, the layer has a norm before the attention."""
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.fc = nn.Parameter(torch.empty(2 * config.hidden_size, config.hidden_size))
        self.fc_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.layer = Layer(config, input_norm)

    @property
    def network(self) -> nn.Module:
        return self

    def forward(self, ids: Tensor, features: Tensor, context: LayerContext, cache: KVCache) -> Tensor:
        """Predict the next features [R, n, h], and write the keys and values of the pairs to the drafter's KV cache.

        Args:
            ids: [R, n], token id of each pair.
            features: [R, n, h], feature of each pair.
        """
        # An index needs fewer operations than `embedding`, whose gradient is faster.
        embedded = F.embedding(ids, self.embedding) if torch.is_grad_enabled() else self.embedding[ids]
        x = torch.cat([embedded, features.to(self.embedding.dtype)], -1).flatten(0, 1)
        x = product(x, self.fc) + self.fc_bias
        with without_cudnn():
            return self.layer(x, context, cache.data[0]).view(embedded.shape)

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> EagleProposer:
        return EagleProposer(self, context, rows, noise)

    def uncommitted(self, largest: Shape) -> int:
        return largest.depth * largest.width  # each level runs the network on at most `width` nodes

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        return KVCache.num_bytes(self.config, rows, cache_length, itemsize)


def paired_ids(pairing: Pairing, ids: Tensor, image_ids: Tensor) -> Tensor:
    """Return the token ids [R, n] with which n features are paired.

    Args:
        ids: [R, n + 1], token ids: the tokens of the n features, then the token that follows these tokens.
        image_ids: [V], token id of each code.
    """
    ids = ids[:, :-1] if pairing.late else ids[:, 1:]
    if not pairing.codes:
        return ids
    code = ids - image_ids[0]
    return torch.where((code >= 0) & (code < len(image_ids)), code, ids)


def draft_logits(
    decoder: Decoder,
    out: Tensor,
    sampling: Sampling,
    bias: Tensor | None,
    guidance: Tensor | float,
    head: Tensor | None = None,
) -> Tensor:
    """Return the logits [B, m, V] by which drafts are ranked.

    Top-k and top-p filters are not applied. They would not change the order of the most probable codes.

    Args:
        decoder: Decoder of the target. Its head computes the logits.
        out: [R, m, h], features that the drafter has predicted.
        sampling: Settings of sampling. Only the temperature is used.
        bias: [B, m or 1, V], added to the logits: the grammar at the drafts' positions, plus the noise if it is used
            for drafting.
        guidance: Guidance scale, a tensor [..., 1] or one number for all positions.
        head: Result of :func:`.half_head.half_head`.
    """
    return process_logits(decoder.logits(out.to(decoder.wide_dtype), guidance, head), sampling, bias, filters=False)


class EagleProposer(Proposer):
    """Proposer that grows one draft tree per round and image, as in EAGLE-2 (arXiv 2406.16858).

    With the option `proposal` = "coupled", the scores of drafts include the noise with which the target samples.

    State:
        root_feature: [R, 1, h], the network's prediction of the root's feature. The target's own feature of the root is
            not known, because the target has not read the root yet.
        _cache: KV cache of the network. It has an entry for each pair of decided tokens.
    """

    by_row = ("root_feature", "_cache")
    root_feature: Tensor

    def __init__(self, drafter: EagleDrafter, context: Context, rows: BatchRows, noise: Noise | None):
        target = context.target
        self._drafter = drafter
        self._decoder = target.decoder
        self._head = half_head(self._decoder)
        self._sees_padding = drafter.config.grid_rope is not None
        super().__init__(context, rows, noise if context.settings.proposal == "coupled" else None)
        like = torch.empty(0, dtype=self._decoder.wide_dtype, device=self._decoder.embedding.device)
        self._grammar = target.grammar(like)
        # Drafting uses the guidance scale of the last position everywhere, because nearly all positions have the same
        # scale. Verification uses the exact scale of each position.
        self._guidance = guidance_at(target.guidance(context.sampling.guidance_scale, like), torch.tensor([-1]))
        self._cache = KVCache(drafter.config, self.rows.count, len(self.rows.columns), drafter.embedding)
        self._rope = rope_tables(drafter.config, drafter.embedding)

    def set_rows(self, rows: BatchRows) -> None:
        super().set_rows(rows.unhidden() if self._sees_padding else rows)

    # ---- reading the target's features ------------------------------------------------------

    def begin(self, prefill: Prefill) -> None:
        """Read the pairs of the prompts and prefixes."""
        metadata = self.rows.prefill() if self._sees_padding else prefill.metadata
        ids = torch.cat([self.rows.ids[:, :1], prefill.ids], 1)
        ids = paired_ids(self._drafter.pairing, ids, self._decoder.image_ids)
        self.root_feature = self._run(ids, prefill.features, self._context(metadata))[:, -1:].clone()

    def on_verified(self, verified: Verified) -> None:
        """Read the pairs of the accepted path."""
        tokens = torch.cat([verified.tree.tokens[:, :1], verified.following], 1)
        features = self.rows.gather(verified.features, verified.acceptance.path)
        context = self.context_ahead(verified.roots, features.shape[1])
        out = self.read_ahead(self.paired_codes(tokens), features, context)
        self.root_feature.copy_(self.rows.gather(out, verified.acceptance.accepted))

    def on_plain_round(self, read: PlainRead) -> None:
        """Read the pairs of the root and of the kept tokens."""
        self.catch_up(read.tokens_and_next, read.features, read.roots, read.runs + 1)

    def catch_up(self, tokens: Tensor, features: Tensor, first: Roots, counts: Tensor) -> None:
        """Read pairs of decided tokens that the network has not read in earlier rounds.

        Args:
            tokens: [B, m + 1] codes, as for :meth:`paired_codes`.
            features: [R, m, h], as for :meth:`read_ahead`.
            first: For each image, the position of its first unread pair. The codes in `first` are not used.
            counts: [B, 1], number of unread pairs of each image, at most m.
        """
        context = self.context_ahead(first, features.shape[1])
        out = self.read_ahead(self.paired_codes(tokens), features, context)
        out = self.rows.gather(out, (counts - 1).clamp_min(0))
        has_pairs = self.rows.spread(counts > 0)[..., None]
        self.root_feature.copy_(torch.where(has_pairs, out, self.root_feature))

    def context_ahead(self, roots: Roots, count: int) -> LayerContext:
        """Return positions and mask of a forward pass over the pairs of `count` successive tokens, the root first."""
        return self._context(self.rows.causal_metadata(roots, count))

    def paired_codes(self, tokens: Tensor) -> Tensor:
        """Return the codes with which the features of successive tokens are paired, a view [B, m].

        Args:
            tokens: [B, m + 1], codes of m successive tokens, then the code of the token after them.
        """
        return tokens[:, :-1] if self._drafter.pairing.late else tokens[:, 1:]

    def read_ahead(self, codes: Tensor, features: Tensor, context: LayerContext) -> Tensor:
        """Read pairs of successive tokens, and return the predicted features [R, m, h] of the next tokens.

        Args:
            codes: [B, m], result of :meth:`paired_codes` for m successive tokens and the token after them.
            features: [R, m, h], features of the m tokens.
            context: Result of :meth:`context_ahead` for m tokens.
        """
        return self._run(self._ids(codes), features, context)

    def read_tree(self, verified: Verified) -> Tensor:
        """Read the pairs of all drafts and of the next root, and keep the cache entries of the accepted path.

        Return the network's predictions of the features of all nodes, [R, N + 1, h].
        """
        # The pair of a node combines the feature of its parent with the token of the node. The pair has the position of
        # the parent. The last pair belongs to the next root. Its parent is the last accepted node. Example: the tree is
        # 7 -> (3 -> 9, 5), so 7 has the children 3 and 5, and 3 has the child 9. The accepted path is 7, 3, and the
        # next root is 4:
        #
        #     token of the pair             3  5  9     4
        #     feature of the parent         7  7  3     3
        #     position minus root's         0  0  1     1
        #     attends to pairs of tokens    3  5  3, 9  3, 4
        tree = verified.tree
        acceptance = verified.acceptance
        parents = torch.cat([tree.parents[:, 1:], acceptance.last], 1)
        if self._drafter.pairing.late:
            codes = tree.tokens.gather(1, parents)
        else:
            codes = torch.cat([tree.tokens[:, 1:], acceptance.next_root], 1)
        # A pair attends to the pairs of the parent and of its ancestors, and to itself. The root has no pair.
        lineages = tree.ancestors.gather(1, parents[..., None].expand(-1, -1, tree.size))
        # The root is in every lineage, so the negated column of the root is a column of False.
        mask = torch.cat([lineages[..., 1:], ~lineages[..., :1]], 2)
        mask.diagonal(dim1=1, dim2=2).fill_(True)
        metadata = self.rows.metadata(verified.roots, 0, tree.depths.gather(1, parents), mask)
        out = self._run(self._ids(codes), self.rows.gather(verified.features, parents), self._context(metadata))
        # Pairs to keep in the cache: the pairs of the accepted drafts (the pair of node i has the index i - 1), then
        # the pair of the next root, which is the last pair. In the example: path 0, 1 -> pairs 0, 3.
        path = (acceptance.drafts - 1).clamp_min(0).scatter_(1, acceptance.accepted, tree.size - 1)
        starts = self.rows.broadcast(verified.roots.at) + self.rows.cache_offset
        self._cache.compact(starts, self.rows.broadcast(path))
        expected = torch.cat([self.root_feature, out[:, :-1]], 1)
        self.root_feature.copy_(out[:, -1:])
        return expected

    def _ids(self, codes: Tensor) -> Tensor:
        """Return the token ids [R, n] for the codes [B, n] with which n features are paired."""
        return self.rows.spread(codes if self._drafter.pairing.codes else self._decoder.image_ids.take(codes))

    def _context(self, metadata: AttentionMetadata) -> LayerContext:
        return LayerContext.of(metadata, self._rope, self._drafter.config)

    def _run(self, ids: Tensor, features: Tensor, context: LayerContext) -> Tensor:
        self.forwards += 1
        return self._drafter(ids, features, context, self._cache)

    # ---- growing a tree ---------------------------------------------------------------------

    def children(self, out: Tensor, bias: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """Return scores and codes [B, m, width] of the best children of m nodes.

        A score is the log-probability of a child: log-softmax of :func:`draft_logits`. If noise is used for drafting,
        the score approximates the logarithm of the probability that the child is accepted.

        Args:
            out: [R, m, h], predicted features of the nodes.
            bias: [B, m or 1, V], result of :meth:`logit_bias` at the positions of the children.
        """
        z = draft_logits(self._decoder, out, self.context.sampling, bias, self._guidance, self._head)
        scores, codes = z.log_softmax(-1).topk(min(width, z.shape[-1]), -1)
        return scores, codes

    def logit_bias(self, roots: Roots, depth: int) -> Tensor | None:
        """Return noise plus grammar at `depth` positions after each root, [B, depth, V]; None if there is neither."""
        if self._grammar is None and self.noise is None:
            return None
        at = (roots.at + self.rows.columns[1 : depth + 1]).clamp_max(self.context.target.length - 1)
        noise = torch.zeros((), device=at.device) if self.noise is None else self.noise.at(at)
        grammar = grammar_at(self._grammar, at)
        return noise if grammar is None else noise + grammar

    def propose(self, roots: Roots, sizes: TreeSizes) -> DraftTree:
        if sizes.depth == 0:
            return chain(roots.codes[:, None], self.root_feature.new_zeros(len(roots.codes), 0))
        bias = self.logit_bias(roots, sizes.depth)
        by_level: list[Tensor | None] = [None] * sizes.depth if bias is None else [*bias.split([1] * sizes.depth, 1)]
        if sizes.tree:
            return self._grow_tree(roots, by_level, PublishedTree(sizes, self.context), sizes)
        growth = Growth(sizes, self.context)
        if sizes.width == 1:
            return self._grow_chain(roots, by_level[: sizes.drafts], growth)
        return self._grow_tree(roots, by_level, growth, sizes)

    def _grow_chain(self, roots: Roots, biases: list[Tensor | None], growth: Growth) -> DraftTree:
        """Grow a tree of width 1, without selection of nodes and without a mask.

        Args:
            biases: For each level, noise plus grammar [B, 1, V]; None if there is neither.
        """
        out = self.root_feature
        tokens = [roots.codes[:, None]]
        scores: list[Tensor] = []
        total: Tensor | None = None
        for level, bias in enumerate(biases, start=1):
            score, token = self.children(out, bias, 1)
            total = growth.candidates(score if total is None else score + total, level)
            tokens.append(token[:, 0])
            scores.append(total[:, 0])
            if level == len(biases) or growth.has_ended(total):
                break
            metadata = self.rows.metadata(roots, level - 1, level - 1, None)
            codes = tokens[-2] if self._drafter.pairing.late else tokens[-1]
            out = self._run(self._ids(codes), out, self._context(metadata))
        return chain(torch.cat(tokens, 1), torch.cat(scores, 1))

    def _grow_tree(self, roots: Roots, biases: list[Tensor | None], growth: Growth, sizes: TreeSizes) -> DraftTree:
        """Grow a tree level by level. At the end, keep only the nodes with the best scores.

        The best candidates of a level form the beam and get `width` children each. The other candidates get no
        children.
        """
        pool = CandidatePool()
        out = self.root_feature
        fed = roots.codes[:, None]
        beam_scores: Tensor | None = None
        parents = torch.zeros_like(fed)
        # Whether each node of the beam attends to each pair that the network has read for this tree.
        visible = torch.zeros(len(fed), 1, 0, dtype=torch.bool, device=fed.device)
        for level, bias in enumerate(biases, start=1):
            scores, tokens = self.children(out, bias, sizes.width)
            scores = growth.candidates(scores if beam_scores is None else scores + beam_scores[..., None], level)
            first = pool.add(tokens, scores, parents)
            if level == len(biases):
                break
            beam_scores, beam = growth.beam(scores.flatten(1), level, pool)
            count = beam.shape[1]
            if count == 0:
                break
            parents = beam + first
            parent = beam // scores.shape[-1]
            itself = torch.eye(count, dtype=torch.bool, device=fed.device).expand(len(fed), -1, -1)
            seen = visible.gather(1, parent[..., None].expand(-1, -1, visible.shape[-1]))
            visible = torch.cat([seen, itself], -1)
            metadata = self.rows.metadata(roots, visible.shape[-1] - count, level - 1, visible)
            before = fed
            fed = tokens.flatten(1).gather(1, beam)
            codes = before.gather(1, parent) if self._drafter.pairing.late else fed
            out = self._run(self._ids(codes), self.rows.gather(out, parent), self._context(metadata))
        drafts = self.context.size(pool.usable, min(sizes.drafts, pool.count))
        return pool.rerank(roots.codes, drafts, sizes.budgets)


class Growth:
    """Rules that limit the growth of a tree: the shape of each image's tree, and pruning of improbable drafts."""

    def __init__(self, sizes: TreeSizes, context: Context):
        self._shapes = sizes
        self._context = context
        self._keep = _log(context.settings.keep_above)
        self._expand = _log(context.settings.expand_above)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        """Return the scores of a level, with -inf for excluded candidates.

        Args:
            scores: [B, m, k], cumulative log-probabilities of k children for each of m nodes.
            level: Number of the level, 1 for the root's children.
        """
        if not self._shapes.alike:
            rank = torch.arange(scores.shape[-1], device=scores.device)
            beyond = (rank >= self._shapes.widths[..., None]) | (level > self._shapes.lengths[..., None])
            scores = scores.masked_fill(beyond, -math.inf)
        return scores if self._keep == -math.inf else scores.masked_fill(scores < self._keep, -math.inf)

    def has_ended(self, scores: Tensor) -> bool:
        """Return whether no chain with these scores can grow further. On a GPU, sizes are fixed, so it is False."""
        can_end = self._keep > -math.inf or self._expand > -math.inf
        return can_end and self._context.size(lambda: scores > self._expand, 1) == 0

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """Select the candidates of a level that get children: the beam. Return their scores and indices, [B, m] each.

        On a CPU, a candidate is left out if none of its children can be in the final tree (:meth:`promising`). On a
        GPU, where rounds are replayed as CUDA graphs, the size of the beam is fixed.

        Args:
            scores: [B, n], cumulative log-probabilities of the level's candidates.
            level: Number of the level, 1 for the root's children.
            pool: Candidates of all levels so far.
        """
        best, beam = scores.topk(min(self._shapes.width, scores.shape[1]), 1)
        if not self._shapes.alike:
            rank = torch.arange(best.shape[1], device=scores.device)
            ended = (rank >= self._shapes.widths) | (level >= self._shapes.lengths)
            best = best.masked_fill(ended, -math.inf)
        if self._expand > -math.inf:
            best = best.masked_fill(best < self._expand, -math.inf)
        count = self._context.size(lambda: self.promising(best, pool), best.shape[1])
        return best[:, :count], beam[:, :count]

    def promising(self, best: Tensor, pool: CandidatePool) -> Tensor:
        """Return how many candidates of each image could have a child in the image's final tree, [B].

        The final tree of an image keeps the N best candidates of all levels, where N is the image's number of drafts. A
        score is a sum of log-probabilities, so a child never has a higher score than its parent. Therefore a candidate
        can only have a child in the final tree if its score is above the N-th best score so far.

        Args:
            best: [B, m], cumulative log-probabilities of a level's best candidates.
        """
        return (best > pool.threshold(self._shapes.drafts, self._shapes.budgets)).sum(1)


class PublishedTree(Growth):
    """Rules for a published tree: the paper fixes the nodes of the tree, and improbable drafts are not pruned."""

    def __init__(self, sizes: TreeSizes, context: Context):
        super().__init__(sizes, context)
        self._levels = _tree_levels(sizes.tree, context.target.decoder.embedding.device)

    def candidates(self, scores: Tensor, level: int) -> Tensor:
        absent, _ = self._levels[level - 1]
        return scores.masked_fill(absent | (level > self._shapes.lengths[..., None]), -math.inf)

    def beam(self, scores: Tensor, level: int, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        _, parents = self._levels[level - 1]
        return scores[:, parents], parents.expand(len(scores), -1)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


@cache
def _tree_levels(name: str, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return the levels of a published tree, a key of STATIC_TREES.

    Returns:
        Two tensors for each level with m parents and k candidates each. The first tensor, [m, k] bool, is True for
        candidates that are not nodes of the tree. The second has the flat indices of the candidates that have children.
    """
    # Example: the root has 2 children. The first child has 2 children, the second child has none. Then k = 2, and the
    # levels are ([[False, False]], [0]) and ([[False, False]], []).
    levels = []
    parents = [""]
    children = STATIC_TREES[name]
    width = children[""]
    while parents:
        absent = [[rank >= children[parent] for rank in range(width)] for parent in parents]
        nodes = [parent + str(rank) for parent in parents for rank in range(width)]
        parents = [node for node in nodes if node in children]
        indices = [nodes.index(node) for node in parents]
        levels.append((torch.tensor(absent, device=device), torch.tensor(indices, device=device)))
    return levels
