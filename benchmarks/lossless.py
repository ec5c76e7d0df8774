"""The losslessness matrix: every method, drafter, proposal and tree size writes plain decoding's tokens.

    python -m benchmarks.lossless [--captions 16] [--seeds 2] [--dtype float64] [--weights int8] [--guidance 3]
                                  [--temperatures 0 1] [--only TEXT] [--exact on|off]

In float64 and in half precision any difference is a failure (exit code 1). In float32 the first difference of an image
must be a near tie of the plain run: a gap below 1e-3 between its two best perturbed logits. Every cell also counts
accepted drafts by depth and sibling rank, so that a matrix in which nothing was drafted can't pass. The captions of a
seed decode as one batch.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from adt_core import Drafting, Sampling, Target, load_drafter, load_target
from adt_core.app.jobs import Job, decode
from adt_core.drafters import with_window
from adt_core.policies import PLAIN, CostProfile
from adt_core.policies.recipe import Recipe
from adt_core.rules.sampling import noise_table, process_logits

from .harness import captions
from .turns import head, row

TIE = 1e-3
"""Gap of two perturbed logits below which rounding may turn their order in float32."""


class Setting(NamedTuple):
    """A drafter, as ``--drafter`` takes it, and drafting options."""

    drafter: str
    options: dict

    @property
    def name(self) -> str:
        return f"{self.drafter} " + " ".join(str(value) for value in self.options.values())


_WINDOW = {"method": "eagle2", "depth": 16, "width": 3, "nodes": 24}
_WITH_BOTH_PROPOSALS = [
    Setting("bundled", {"method": "adt-tree"}),
    Setting("jacobi", _WINDOW),
    Setting("bundled+jacobi", _WINDOW),
    Setting("bundled", {"method": "eagle2", "depth": 4, "width": 3, "nodes": 10}),
    Setting("bundled", {"method": "static:mc_sim_7b_63"}),
    Setting("bundled", {"method": "static:naive_extend_57"}),
]
_COUPLED = [
    Setting("bundled", {"method": "eagle2", "depth": 3, "width": 1, "nodes": 3}),
    Setting("bundled", {"method": "eagle2", "depth": 5, "width": 8, "nodes": 40}),
    Setting("bundled", {"method": "adt-tree", "nodes": 24, "width_max": 6, "init": "vertical", "wrap": "vertical"}),
    Setting(
        "bundled", {"method": "eagle2", "depth": 6, "width": 2, "nodes": 8, "expand_above": 0.3, "keep_above": 0.05}
    ),
    Setting("jacobi", {"method": "eagle2", "depth": 16, "width": 1, "nodes": 16}),
    # A window of one slot is never read twice, so its guesses stay poor and ADT-Tree would keep it that short.
    Setting(
        "jacobi",
        {"method": "adt-tree", "depth": 8, "width": 3, "nodes": 16, "depth_min": 4, "depth_max": 16, "width_max": 4},
    ),
    Setting("bundled", {"method": "auto"}),
    Setting("jacobi", {"method": "auto"}),
]
SETTINGS = [
    *_WITH_BOTH_PROPOSALS,
    *_COUPLED,
    *(setting._replace(options=setting.options | {"proposal": "top-k"}) for setting in _WITH_BOTH_PROPOSALS),
]
"""The matrix: every method and drafter, and each kind of tree with both proposals."""


def plain_run(target: Target, prompts: list[str], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Plain decoding's codes [B, T], and for every token the gap between the two best perturbed logits, [B, T].

    Images that are decoded together plainly stay in step, so the target's head is asked once for every position.
    """
    head, asked = target.decoder.logits, []

    def watched(*arguments) -> Tensor:
        logits = head(*arguments)
        asked.append(logits[:, -1])
        return logits

    with patch.object(target.decoder, "logits", watched):
        codes = decode(Job(target, Recipe(sampling, Drafting(method=PLAIN))).decoding(prompts)).codes
    z = process_logits(torch.stack(asked, 1), sampling)
    noise = noise_table(sampling, [0] * len(prompts), target.length, z.shape[-1], z)
    perturbed = z if noise is None else z + noise
    assert torch.equal(perturbed.argmax(-1).cpu(), codes), "the logits that were watched are not those of the tokens"
    best, second = perturbed.topk(2, -1).values.unbind(-1)
    return codes, best - second


FREE = ((0, 1.0), (64, 1.0))
"""What drafts cost ``auto`` here, so that it drafts all the time: else it would rightly make next to none, and prove
nothing."""


def free_drafts(job: Job) -> Job:
    """The same job, in which ``auto`` believes that drafts of every source cost nothing."""
    assert job.drafter is not None
    names = [source.name for source in with_window(job.drafter).sources]
    return replace(job, recipe=replace(job.recipe, profile=CostProfile("free", 1, dict.fromkeys(names, FREE))))


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

    def lossless(self, tolerance: float) -> bool:
        """Every image is plain decoding's, or parts from it at a gap below ``tolerance``."""
        return all(gap < tolerance for gap in self.first_gaps)

    def add(self, codes: Tensor, trace, expected: Tensor, gaps: Tensor) -> None:
        """Count the images of a decoding, codes [B, T], against plain decoding's."""
        for share in (share for round in trace.rounds for share in round.images):
            self.emitted, self.forwards = self.emitted + share.accepted + 1, self.forwards + 1
            self.depths.update(range(1, share.accepted + 1))
            self.ranks.update(share.ranks)
        for image, different in enumerate(codes != expected):
            self.images += 1
            self.identical += not different.any()
            if different.any():
                self.first_gaps.append(float(gaps[image, different.nonzero()[0, 0]]))


def run_matrix(
    target: Target,
    prompts: list[str],
    seeds: list[int],
    temperatures: list[float],
    settings: list[Setting],
    guidance: float = 3.0,
) -> Iterator[tuple[str, Cell]]:
    """Decode everything, the prompts of one seed as one batch; yield each Cell, with its name, as soon as it is done.

    At temperature 0 all seeds draw the same image, so one is enough.
    """
    drafters = {name: load_drafter(name, target) for name in {setting.drafter for setting in settings}}
    for temperature in temperatures:
        samplings = [Sampling(seed=seed, temperature=temperature, guidance=guidance) for seed in seeds]
        samplings = samplings if temperature else samplings[:1]
        plain = [plain_run(target, prompts, sampling) for sampling in samplings]
        for setting in settings:
            cell = Cell()
            for sampling, expected in zip(samplings, plain, strict=True):
                job = Job(target, Recipe(sampling, Drafting(**setting.options)), drafters[setting.drafter])
                decoding = decode(free_drafts(job).decoding(prompts))
                cell.add(decoding.codes, decoding.trace, *expected)
            yield f"T{temperature:g} {setting.name}", cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2, help="at temperature 0 only the first")
    parser.add_argument("--dtype", choices=["float64", "float32", "bfloat16", "float16"], default="float64")
    parser.add_argument("--weights", choices=["int8", "fp8"])
    parser.add_argument("--exact", choices=["on", "off"], default="on", help="of half precision")
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--only", default="", help="settings whose name holds this")
    args = parser.parse_args()
    target = load_target(dtype=getattr(torch, args.dtype), weights=args.weights, exact=args.exact == "on")
    settings = [setting for setting in SETTINGS if args.only in setting.name]
    tolerance, prompts = TIE if args.dtype == "float32" else 0.0, captions(3000, args.captions)
    cells = []
    print(head("setting", "images", "identical", "gaps of first differences", "tau", "accepted by depth", "by rank"))
    matrix = run_matrix(target, prompts, list(range(args.seeds)), args.temperatures, settings, args.guidance)
    for name, cell in matrix:
        cells.append(cell)
        gaps = ", ".join(f"{gap:.1e}" for gap in cell.first_gaps)
        depths, ranks = dict(sorted(cell.depths.items())), dict(sorted(cell.ranks.items()))
        line = row(name, cell.images, cell.identical, gaps, cell.tau, depths, ranks)
        print(line, flush=True)  # a row at a time: a long run that is cut off has shown what it did
    good = all(cell.really_drafted and cell.lossless(tolerance) for cell in cells)
    total, same = sum(cell.images for cell in cells), sum(cell.identical for cell in cells)
    print(
        f"{args.dtype} {args.weights or ''}: {same} of {total} images identical to plain decoding"
        + ("" if good else "; FAILED")
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
