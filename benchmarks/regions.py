"""Do ADT-Tree's depth and the accepted drafts follow the picture?

    python -m benchmarks.regions [--prompts 16] [--methods adt-tree,jacobi,merged]

For every token: the depth of the tree of the round that emitted it, and the tokens of that round, against the detail of
the picture there (mean absolute gradient of the pixels in and around the token's square). Prints Spearman's rank
correlations within images, medians with bootstrap intervals, and means over images of the quarters of an image, from
the smoothest to the busiest.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from adt_core import Lantern, Sampling, load_drafter, load_target
from adt_core.app.jobs import Job, decode
from adt_core.policies.recipe import Recipe
from adt_lab.benchmark import Benchmark

from .harness import captions
from .speed import EVALUATION
from .turns import interval

QUARTERS = 4


def detail(pixels: Tensor, downsample: int) -> np.ndarray:
    """pixels [3, H, W] -> mean absolute gradient per token, smoothed over neighbours, flat."""
    gray = pixels.mean(0)
    gradient = torch.zeros_like(gray)
    gradient[:, 1:] += gray.diff(dim=1).abs()
    gradient[1:] += gray.diff(dim=0).abs()
    cells = torch.nn.functional.avg_pool2d(gradient[None, None], downsample)
    return torch.nn.functional.avg_pool2d(cells, 3, 1, 1, count_include_pad=False).flatten().numpy()


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, ties at their mean rank."""

    def ranks(x: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def figures(job: Job, prompt: str) -> list[float]:
    """Of one image: Spearman of depth and of tokens per round; then depth, and tokens per forward, of every quarter.

    A token of a round that emitted n took 1 / n of a forward. The first token has no round and is left out.
    """
    decoding = decode(job.decoding([prompt]))
    with torch.inference_mode():
        busy = detail(job.pixels(decoding.grid_codes())[0].float().cpu(), job.target.downsample)[1:]
    depth, emitted = (np.array(decoding.trace.token_map(name)).flatten()[1:] for name in ("depth", "acceptance"))
    quarters = np.array_split(np.argsort(busy, kind="stable"), QUARTERS)
    correlations = [spearman(values, busy) if np.ptp(values) else 0.0 for values in (depth, emitted)]
    forwards = [1 / np.mean(1 / emitted[part]) for part in quarters]
    return [*correlations, *(depth[part].mean() for part in quarters), *forwards]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--methods", default="adt-tree,jacobi,merged")
    args = parser.parse_args()
    target, prompts, methods = load_target(), captions(EVALUATION, args.prompts), args.methods.split(",")
    jobs = Benchmark(prompts, methods, Recipe(Sampling(seed=1), lantern=Lantern())).jobs(
        target, load_drafter("bundled", target)
    )
    print(f"{args.prompts} images")
    print(
        "| method | Spearman of depth | of tokens per forward | depth, smoothest to busiest quarter "
        "| tokens per forward |\n|---|---|---|---|---|"
    )
    for method in methods:
        values = np.array([figures(jobs[method], prompt) for prompt in prompts])
        correlations = [interval(column) for column in values.T[:2]]
        means = [f"{mean:.2f}" for mean in values.mean(0)[2:]]
        quarters = ", ".join(means[:QUARTERS]), ", ".join(means[QUARTERS:])
        print(f"| {method} | {' | '.join([*correlations, *quarters])} |", flush=True)


if __name__ == "__main__":
    main()
