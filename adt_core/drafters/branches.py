"""Branches of a window's trees: a tree is the window's spine with the most probable branches.

Terms, as in :mod:`.jacobi`: the *spine* is the sequence of the most probable candidates of a window. A *branch* leaves
the spine at one position, takes another candidate there, and continues with the spine's tokens. The branch (i, r, m)
consists of the spine's tokens before position i, candidate r at position i, and then the next m tokens of the spine.

A tree is assembled from *runs*. A run is a sequence of nodes with successive numbers, each the parent of the next one.
The spine is a run, and each branch has a run. Two numbers describe a node: `base` is the number of the node before the
run, and `run` is the number of the run's nodes up to the node. Example: the root is 0, and the spine is 10, 20, 30.
There are three branch nodes (i, r, m): token 21 instead of 20 is (1, 1, 0), token 30 after 21 is (1, 1, 1), and token
22 instead of 20 is (1, 2, 0)::

    node      0   1   2   3   4   5   6
    token     0  10  20  30  21  30  22
    base      0   0   0   0   1   1   1     in a branch: i
    run       0   1   2   3   1   2   1     in a branch: m + 1
    parent    0   0   1   2   1   4   1     base for the first node of a run, else the node with the number before
    depth     0   1   2   3   2   3   2     base + run

Padding has the base 0 and the run 0.

Dimensions: B images; M positions of a window; K candidates per position, k of which may be in a tree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..rules.sampling import is_finite
from ..rules.tree import DraftTree, keep_best

LONGEST_RETURN = 4
"""Maximum number of spine tokens in a branch, after the candidate with which the branch leaves the spine."""


def spine_and_branches(
    tokens: Tensor, candidates: Tensor, log_p: Tensor, drafts: int, budgets: Tensor | None = None
) -> DraftTree:
    """Return a tree that consists of a spine and the best branches of this spine.

    Args:
        tokens: [B, M + 1], codes of the root and of the spine.
        candidates: [B, M, K], codes of all candidates at each position, the spine's first.
        log_p: [B, M, k], log-probabilities of the first k candidates.
        drafts: Maximum number of drafts in spine and branches together.
        budgets: [B, 1], maximum number of drafts of each image; None if it is `drafts` for every image.
    """
    length = log_p.shape[1]
    spine = torch.cat([log_p.new_zeros(len(log_p), 1), log_p[..., 0].cumsum(1)], 1)
    branch_budgets = None if budgets is None else budgets + 1 - is_finite(spine).sum(1, keepdim=True)
    best_scores, best = _best_branches(log_p, spine, drafts - length, branch_budgets)
    scores = torch.cat([spine, best_scores], 1)
    valid = is_finite(scores)
    # The spine's nodes get (i, r, m) = (0, 1, 1): the base is 0, and they are not the first node of a branch.
    branches = torch.cat([best.new_ones(len(best), length + 1), best], 1)
    base, rank, m = _branch_of(branches, log_p.shape[2] - 1)
    numbers = torch.arange(scores.shape[1], device=tokens.device)
    run = torch.where(numbers <= length, numbers, m + 1)
    is_first = m == 0
    other = candidates.flatten(1).gather(1, base * candidates.shape[2] + rank)
    codes = torch.where(is_first, other, tokens.gather(1, (base + run).clamp_max(length)))
    zero = base[:, :1]  # the base of the root
    base = torch.where(valid, base, zero)
    run = torch.where(valid, run, zero)
    return DraftTree(
        tokens=codes,
        parents=torch.where(run > 1, numbers - 1, base),
        depths=base + run,
        ranks=torch.where(is_first, rank, zero),
        scores=scores,
        valid=valid,
        ancestors=_run_ancestors(numbers, base, run),
        height=length,
    )


def _run_ancestors(numbers: Tensor, base: Tensor, run: Tensor) -> Tensor:
    """Return the ancestors of nodes, as `DraftTree.ancestors`: the nodes up to the base, and the run up to the node.

    Args:
        numbers: [n], the numbers 0, 1, 2, ...
        base: [B, n], base of each node.
        run: [B, n], number of nodes in the run up to each node. It is 0 for the root and for padding, whose ancestors
            are the root and itself.
    """
    before_run = (numbers - run.clamp_min(1))[..., None]
    in_run = (numbers > before_run) & (numbers <= numbers[:, None])
    return in_run | (numbers <= base[..., None])


def branch_scores(log_p: Tensor, spine: Tensor) -> Tensor:
    """Return the log-probability of each possible branch: the sum over all its tokens.

    Args:
        log_p: [B, M, k], log-probability of each of k candidates at each position. The first candidate is the spine's.
        spine: [B, M + 1], sum of the log-probabilities of the spine's tokens before each position, and of all of them.

    Returns:
        [B, M, k - 1, LONGEST_RETURN + 1]. The entry [b, i, r - 1, m] belongs to the branch (i, r, m) of image b. It is
        -inf if the branch would end after the window.
    """
    # Example with probabilities instead of logarithms, so products instead of sums. The spine's tokens have the
    # probabilities 0.9, 0.5 and 0.8. Another candidate at position 1 has the probability 0.4.
    #
    #     spine      = [1, 0.9, 0.45, 0.36]        probability of the spine before each position
    #     ends[1]    = [0.45, 0.36, 0, 0, 0]       probability of the spine up to each position from 1 on, 0 after it
    #     carried[1] = ends[1] / 0.45 = [1, 0.8, 0, 0, 0]       probability of the next m tokens of the spine
    #     scores[1]  = spine[1] * 0.4 * carried[1] = [0.36, 0.288, 0, 0, 0]
    cumulative = spine[:, 1:]
    after = cumulative.new_full((len(cumulative), LONGEST_RETURN), -math.inf)
    ends = torch.cat([cumulative, after], 1).unfold(1, LONGEST_RETURN + 1, 1)
    carried = ends - cumulative[..., None]
    scores = spine[:, :-1, None, None] + log_p[..., 1:, None] + carried[:, :, None]
    return scores.nan_to_num(nan=-math.inf, neginf=-math.inf)


def _branch_of(index: Tensor, others: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return i, r and m of the branches with some indices in the flattened result of :func:`branch_scores`."""
    # The index is candidate * (LONGEST_RETURN + 1) + m, and `candidate` is i * (k - 1) + r - 1.
    candidate = index // (LONGEST_RETURN + 1)
    return candidate // others, candidate % others + 1, index % (LONGEST_RETURN + 1)


def _best_branches(log_p: Tensor, spine: Tensor, count: int, budgets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose the `count` best branch nodes. Node (i, r, m) is the last node of the branch (i, r, m).

    The parent of (i, r, m) is (i, r, m - 1). The score of the parent is at least as high. If both scores are equal, the
    parent is chosen first, because its m is smaller. So all ancestors of a chosen node are chosen too.

    Args:
        log_p: [B, M, k], log-probabilities of the candidates, the spine's first.
        spine: [B, M + 1], as for :func:`branch_scores`.
        budgets: [B, 1], maximum number of branch nodes of each image; None if it is `count` for every image.

    Returns:
        Log-probabilities of the chosen branches, and their indices in the flattened result of :func:`branch_scores`,
        [B, count] each, sorted by i, then r, then m.
    """
    scores = keep_best(branch_scores(log_p, spine).flatten(1), budgets)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
    return scores.gather(1, best), best
