"""Check that every method, drafter, proposal and tree size generates the same tokens as plain decoding.

    python -m benchmarks.lossless [--captions 16] [--seeds 2] [--dtype float64] [--weights int8] [--guidance-scale 3]
                                  [--temperatures 0 1] [--only TEXT] [--exact on|off]

The exit code is 1 if a setting fails. In float64 and in half precision, a setting fails if any token differs. In
float32, rounding may change the order of two candidates that are nearly tied. A setting therefore fails only if the
first different token of an image is not a near tie. A near tie is a position at which the two largest perturbed logits
(logits plus Gumbel noise) of plain decoding differ by less than 1e-3.

A setting also fails if drafts were accepted at no depth or only at depth 1, because the check would then prove nothing.
The report counts the accepted drafts by depth in the tree and by rank among siblings. All captions of a seed are
decoded as one batch.
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

from adt_core import Drafting, Pipeline, Recipe, Sampling, Target, Trace, load_drafter, load_target
from adt_core.drafters import with_window
from adt_core.policies import PLAIN, CostProfile
from adt_core.rules.sampling import noise_table, process_logits

from .harness import captions
from .tables import header, row

TIE = 1e-3  # maximum difference of two perturbed logits whose order float32 rounding may change


class Setting(NamedTuple):
    """Drafter and drafting options of one row of the table of results."""

    drafter: str  # value of ``--drafter``
    options: dict  # arguments of `Drafting`

    @property
    def name(self) -> str:
        """Name of the drafter and values of the options, separated by spaces."""
        return f"{self.drafter} " + " ".join(str(value) for value in self.options.values())


_WINDOW = {"method": "eagle2", "depth": 16, "width": 3, "drafts": 24}
_WITH_BOTH_PROPOSALS = [
    Setting("bundled", {"method": "adt-tree"}),
    Setting("jacobi", _WINDOW),
    Setting("bundled+jacobi", _WINDOW),
    Setting("bundled", {"method": "eagle2", "depth": 4, "width": 3, "drafts": 10}),
    Setting("bundled", {"method": "static:mc_sim_7b_63"}),
    Setting("bundled", {"method": "static:naive_extend_57"}),
]
_COUPLED = [
    Setting("bundled", {"method": "eagle2", "depth": 3, "width": 1, "drafts": 3}),
    Setting("bundled", {"method": "eagle2", "depth": 5, "width": 8, "drafts": 40}),
    Setting("bundled", {"method": "adt-tree", "drafts": 24, "width_max": 6, "init": "vertical", "wrap": "vertical"}),
    Setting(
        "bundled", {"method": "eagle2", "depth": 6, "width": 2, "drafts": 8, "expand_above": 0.3, "keep_above": 0.05}
    ),
    Setting("jacobi", {"method": "eagle2", "depth": 16, "width": 1, "drafts": 16}),
    # depth_min is 4, because a Jacobi window of one position is never refined: its drafts would always be rejected, and
    # ADT-Tree would never extend the window.
    Setting(
        "jacobi",
        {"method": "adt-tree", "depth": 8, "width": 3, "drafts": 16, "depth_min": 4, "depth_max": 16, "width_max": 4},
    ),
    Setting("bundled", {"method": "auto"}),
    Setting("jacobi", {"method": "auto"}),
]
SETTINGS = [
    *_WITH_BOTH_PROPOSALS,
    *_COUPLED,
    *(setting._replace(options=setting.options | {"proposal": "top-k"}) for setting in _WITH_BOTH_PROPOSALS),
]
"""All settings: every method, every drafter, and every kind of tree with both kinds of proposals."""


def plain_run(target: Target, prompts: list[str], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Decode with plain decoding, and record how close the two best candidates of each token were.

    In plain decoding, all images of a batch advance together, so the target's head is called once per position.

    Returns:
        Codes [B, T] of B images with T tokens, and gaps [B, T]. A gap is the difference between the two largest
        perturbed logits.
    """
    logits_of = target.decoder.logits
    recorded = []

    def recording(*arguments) -> Tensor:
        logits = logits_of(*arguments)
        recorded.append(logits[:, -1])
        return logits

    with patch.object(target.decoder, "logits", recording):
        codes = Pipeline(target, Recipe(sampling, Drafting(method=PLAIN))).decoding(prompts).run().codes
    z = process_logits(torch.stack(recorded, 1), sampling)
    noise = noise_table(sampling, [0] * len(prompts), target.length, z.shape[-1], z)
    perturbed = z if noise is None else z + noise
    assert torch.equal(perturbed.argmax(-1).cpu(), codes), "the recorded logits do not reproduce the tokens"
    best, second = perturbed.topk(2, -1).values.unbind(-1)
    return codes, best - second


def free_drafts(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a cost profile in which drafts cost nothing.

    With the real costs, ``auto`` would draft almost nothing on a CPU, and testing it would prove nothing.
    """
    assert pipeline.drafter is not None
    names = [mode.name for mode in with_window(pipeline.drafter).modes]
    free = ((0, 1.0), (64, 1.0))  # rounds with 0 and with 64 drafts cost as much as a plain round
    profile = CostProfile("free", 1, dict.fromkeys(names, free))
    return replace(pipeline, recipe=replace(pipeline.recipe, profile=profile))


@dataclass
class Cell:
    """Results of one setting over all images.

    For each image that is not identical to plain decoding, `first_gaps` has the gap of plain decoding (see `plain_run`)
    at the first different token.
    """

    images: int = 0
    first_gaps: list[float] = field(default_factory=list)
    forwards: int = 0  # rounds, summed over all images
    depths: Counter = field(default_factory=Counter)  # accepted drafts by depth in the tree
    ranks: Counter = field(default_factory=Counter)  # accepted drafts by rank among their siblings

    def add(self, codes: Tensor, trace: Trace, expected: Tensor, gaps: Tensor) -> None:
        """Add the images of a decoding.

        Args:
            codes: Codes [B, T] of B images with T tokens.
            expected: Codes [B, T] of plain decoding.
            gaps: Gaps [B, T] of plain decoding, from `plain_run`.
        """
        for image_round in (image_round for round in trace.rounds for image_round in round.images):
            self.forwards += 1
            self.depths.update(range(1, image_round.accepted + 1))
            self.ranks.update(image_round.ranks)
        self.images += len(codes)
        different = codes != expected
        for image in different.any(1).nonzero().flatten().tolist():
            self.first_gaps.append(float(gaps[image, different[image].nonzero()[0, 0]]))

    def table_row(self, name: str) -> str:
        """Return the row of the table."""
        gaps = ", ".join(f"{gap:.1e}" for gap in self.first_gaps)
        tau = 1 + self.depths.total() / self.forwards
        counts = dict(sorted(self.depths.items())), dict(sorted(self.ranks.items()))
        return row(name, self.images, self.images - len(self.first_gaps), gaps, tau, *counts)


def run_matrix(args: argparse.Namespace, target: Target, settings: list[Setting]) -> Iterator[tuple[str, Cell]]:
    """Decode the captions with every setting, temperature and seed.

    At temperature 0 the image does not depend on the seed, so only the first seed is used.

    Yields:
        Name and results of each setting as soon as it is finished.
    """
    prompts = captions(3000, args.captions)
    drafters = {name: load_drafter(name, target) for name in {setting.drafter for setting in settings}}
    for temperature in args.temperatures:
        seeds = range(args.seeds if temperature else 1)
        samplings = [Sampling(seed, temperature, guidance_scale=args.guidance_scale) for seed in seeds]
        plain = [plain_run(target, prompts, sampling) for sampling in samplings]
        for setting in settings:
            cell = Cell()
            for sampling, expected in zip(samplings, plain, strict=True):
                pipeline = Pipeline(target, Recipe(sampling, Drafting(**setting.options)), drafters[setting.drafter])
                decoding = free_drafts(pipeline).decoding(prompts).run()
                cell.add(decoding.codes, decoding.trace, *expected)
            yield f"T{temperature:g} {setting.name}", cell


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds; temperature 0 uses only the first")
    parser.add_argument("--dtype", choices=["float64", "float32", "bfloat16", "float16"], default="float64")
    parser.add_argument("--weights", choices=["int8", "fp8", "int4"])
    parser.add_argument("--exact", choices=["on", "off"], default="on", help="batch-invariant mode of half precision")
    parser.add_argument("--guidance-scale", type=float, default=3.0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--only", default="", help="run only the settings whose name contains this text")
    args = parser.parse_args()
    target = load_target(dtype=getattr(torch, args.dtype), weights=args.weights, exact=args.exact == "on")
    settings = [setting for setting in SETTINGS if args.only in setting.name]
    tolerance = TIE if args.dtype == "float32" else 0.0
    cells = []
    print(header("setting", "images", "identical", "gaps of first differences", "tau", "accepted by depth", "by rank"))
    for name, cell in run_matrix(args, target, settings):
        cells.append(cell)
        print(cell.table_row(name), flush=True)  # an interrupted run has shown its results
    passed = all(len(cell.depths) > 1 and all(gap < tolerance for gap in cell.first_gaps) for cell in cells)
    total = sum(cell.images for cell in cells)
    identical = total - sum(len(cell.first_gaps) for cell in cells)
    print(
        f"{args.dtype} {args.weights or ''}: {identical} of {total} images identical to plain decoding"
        + ("" if passed else "; FAILED")
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
