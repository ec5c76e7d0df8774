"""Does ADT-Tree's depth follow the picture?

    python -m benchmarks.regions [--prompts 16]

For every token: the realised depth and the acceptance length of the round that emitted it, against the detail of the picture there
(mean absolute gradient of the decoded pixels in and around the token's square). Prints Spearman rank correlations within images
and how much the depth varies inside one.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target

from .harness import captions, decode
from .speed import EVALUATION


def detail(pixels: Tensor, downsample: int) -> np.ndarray:
    """pixels [3, H, W] -> mean absolute gradient per token, smoothed over neighbours, flat."""
    gray = pixels.mean(0)
    gradient = torch.zeros_like(gray)
    gradient[:, 1:] += gray.diff(dim=1).abs()
    gradient[1:] += gray.diff(dim=0).abs()
    cells = torch.nn.functional.avg_pool2d(gradient[None, None], downsample)
    return torch.nn.functional.avg_pool2d(cells, 3, 1, 1, count_include_pad=False).flatten().numpy()


def per_token(decoding: Decoding, name: str) -> np.ndarray:
    """``depth`` or ``accepted`` of the round that emitted each token, flat; the first token has no round and is nan."""
    values = np.full(decoding.length, np.nan)
    for round in decoding.trace.rounds:
        for share in round.images:
            values[share.position + 1 : share.position + share.accepted + 2] = getattr(share, name)
    return values


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, ties at their mean rank."""

    def ranks(x: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    args = parser.parse_args()
    target = load_target()
    drafter = load_drafter("bundled", target)
    rows = []
    for prompt in captions(EVALUATION, args.prompts):
        decoding = decode(target, drafter, prompt, Sampling(seed=1), Drafting())
        with torch.inference_mode():
            busy = detail(target.codec.decode(decoding.grid_codes())[0], target.downsample)[1:]
        depth, accepted = per_token(decoding, "depth")[1:], per_token(decoding, "accepted")[1:]
        smooth, rough = busy <= np.quantile(busy, 0.25), busy >= np.quantile(busy, 0.75)
        rows.append(
            (
                spearman(depth, busy),
                spearman(accepted, busy),
                depth.std(),
                depth.min(),
                depth.max(),
                depth[smooth].mean(),
                depth[rough].mean(),
            )
        )
    table = np.array(rows)
    mean, negative = table.mean(0), (table[:, :2] < 0).sum(0)
    print(
        f"{args.prompts} images, Spearman against detail, mean over images: depth {mean[0]:.2f} (negative in {negative[0]}), "
        f"accepted {mean[1]:.2f} (negative in {negative[1]})"
    )
    print(f"mean depth in the smoothest quarter of an image {mean[5]:.2f}, in the busiest {mean[6]:.2f}")
    print(f"depth inside an image: standard deviation {mean[2]:.2f}, from {mean[3]:.1f} to {mean[4]:.1f} on average")


if __name__ == "__main__":
    main()
