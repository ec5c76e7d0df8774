"""The losslessness matrix: every method, drafter, proposal and tree size writes plain decoding's tokens.

    python -m benchmarks.lossless [--captions 16] [--seeds 2] [--dtype float64|float32]

In float64 any difference is a failure (exit code 1). In float32 the first difference of an image must be a near tie of the
plain run: the gap of its two best perturbed logits below 1e-3. Every cell also counts accepted drafts by depth and sibling
rank, so that a matrix in which nothing was drafted can't pass. One process; the captions of a seed decode as one batch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.app.benchmark import NETWORK, sources
from adt_core.drafters.base import Drafter
from adt_core.drafters.load import JACOBI, WITH_WINDOW
from adt_core.engine.lanes import Lanes
from adt_core.policies import auto
from adt_core.policies.shape import SIZES
from adt_core.policies.static_trees import STATIC_TREES

from .harness import captions

TIE = 1e-3
WINDOW, BOTH = JACOBI, NETWORK + WITH_WINDOW


class Setting(NamedTuple):
    """What drafts, by the names of :func:`adt_core.app.benchmark.sources`, and how."""

    source: str
    drafting: Drafting

    @property
    def name(self) -> str:
        d = self.drafting
        shape = (
            ""
            if d.static or d.method == "auto"
            else f" d{d.depth} k{d.width} N{d.nodes}" + (" pruned" if d.keep_above else "")
        )
        return f"{self.source} {d.method} {d.proposal}{shape}"


_SPINE = Drafting(method="eagle2", depth=16, width=3, nodes=24)
_BOTH_PROPOSALS = [
    Setting(NETWORK, Drafting()),
    Setting(WINDOW, _SPINE),
    Setting(BOTH, _SPINE),
    Setting(NETWORK, Drafting(method="eagle2", depth=4, width=3, nodes=10)),
    *(Setting(NETWORK, Drafting(method=f"static:{name}")) for name in STATIC_TREES),
]
_COUPLED = [
    Setting(NETWORK, Drafting(method="eagle2", depth=3, width=1, nodes=3)),
    Setting(NETWORK, Drafting(method="eagle2", depth=5, width=8, nodes=40)),
    Setting(NETWORK, Drafting(nodes=24, width_max=6, init="vertical", wrap="vertical")),
    Setting(NETWORK, Drafting(method="eagle2", depth=6, width=2, nodes=8, expand_above=0.3, keep_above=0.05)),
    Setting(WINDOW, Drafting(method="eagle2", depth=16, width=1, nodes=16)),
    # A window of one slot is never read twice, so its guesses stay poor and ADT-Tree would keep it that short.
    Setting(WINDOW, Drafting(depth=8, width=3, nodes=16, depth_min=4, depth_max=16, width_max=4)),
    Setting(NETWORK, Drafting(method="auto")),
    Setting(WINDOW, Drafting(method="auto")),
]


def settings() -> list[Setting]:
    """The matrix: every method and drafter, and each kind of tree with both proposals."""
    return (
        _BOTH_PROPOSALS
        + _COUPLED
        + [Setting(source, replace(drafting, proposal="top-k")) for source, drafting in _BOTH_PROPOSALS]
    )


class Watched(Decoding):
    """Records, for every position, the gap between the two best perturbed logits of the plain run."""

    def _begin(self) -> None:
        super()._begin()
        self.gaps: dict[tuple[int, int], float] = {}

    def _perturbed(self, z: Tensor, depths: Tensor | None, lanes: Lanes) -> Tensor:
        perturbed = super()._perturbed(z, depths, lanes)
        if depths is None:
            for image, position, (best, second) in zip(
                lanes.images, lanes.positions, perturbed[:, 0].topk(2, -1).values.tolist()
            ):
                self.gaps[image, position + 1] = best - second
        return perturbed


def restless():
    """A context in which ``auto`` never gives up nor holds back: where drafts don't pay it would rightly make next to none, and prove nothing."""
    return patch.multiple(auto, STAKE=math.inf, MODEST=SIZES[-1], SHORTEST=auto.CHAIN)


@dataclass
class Cell:
    """What one setting did over all images: differences, near ties, accepted drafts."""

    images: int = 0
    identical: int = 0
    first_gaps: list[float] = field(default_factory=list)
    emitted: int = 0
    forwards: int = 0
    depths: Counter = field(default_factory=Counter)
    ranks: Counter = field(default_factory=Counter)

    @property
    def tau(self) -> float:
        return self.emitted / self.forwards

    @property
    def really_drafted(self) -> bool:
        """tau above 1, and accepted drafts at several depths."""
        return self.tau > 1 and len(self.depths) > 1


def run_matrix(
    target,
    drafters: dict[str, Drafter],
    prompts: list[str],
    seeds: list[int],
    temperatures: list[float],
    grid: list[Setting],
) -> dict[str, Cell]:
    """Decode everything, the prompts of one seed as one batch; maps a description of the setting to its :class:`Cell`."""
    cells: dict[str, Cell] = {}
    rows = [target.encode_prompt(prompt) for prompt in prompts]
    for seed in seeds:
        for temperature in temperatures:
            sampling = Sampling(seed=seed, temperature=temperature)
            plain = Watched(target, rows, sampling=sampling, drafting=Drafting(method="autoregressive"))
            for _ in plain:
                pass
            for setting in grid:
                cell = cells.setdefault(f"T{temperature:g} {setting.name}", Cell())
                with restless():
                    _compare(
                        cell,
                        plain,
                        Decoding(
                            target, rows, sampling=sampling, drafting=setting.drafting, drafter=drafters[setting.source]
                        ),
                    )
    return cells


def _compare(cell: Cell, plain: Watched, decoding: Decoding) -> None:
    for round in decoding:
        for share in round.images:
            cell.emitted, cell.forwards = cell.emitted + share.accepted + 1, cell.forwards + 1
            cell.depths.update(range(1, share.accepted + 1))
            cell.ranks.update(share.ranks)
    for image, (codes, expected) in enumerate(zip(decoding.codes, plain.codes)):
        different = (codes != expected).nonzero()
        cell.images += 1
        cell.identical += not len(different)
        if len(different):
            cell.first_gaps.append(plain.gaps[image, int(different[0])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    args = parser.parse_args()
    target = load_target(dtype=getattr(torch, args.dtype))
    drafters = sources(load_drafter("bundled", target))
    cells = run_matrix(target, drafters, captions(3000, args.captions), list(range(args.seeds)), [0.0, 1.0], settings())
    print(
        "| setting | images | identical | gaps of first differences | tau | accepted by depth | by rank |\n|---|---|---|---|---|---|---|"
    )
    good = True
    for name, cell in cells.items():
        gaps = ", ".join(f"{gap:.1e}" for gap in cell.first_gaps)
        depths, ranks = dict(sorted(cell.depths.items())), dict(sorted(cell.ranks.items()))
        print(f"| {name} | {cell.images} | {cell.identical} | {gaps} | {cell.tau:.2f} | {depths} | {ranks} |")
        tolerated = args.dtype == "float32" and all(gap < TIE for gap in cell.first_gaps)
        good &= cell.really_drafted and (cell.identical == cell.images or tolerated)
    total, same = sum(c.images for c in cells.values()), sum(c.identical for c in cells.values())
    print(f"{args.dtype}: {same} of {total} images identical to plain decoding" + ("" if good else "; FAILED"))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
