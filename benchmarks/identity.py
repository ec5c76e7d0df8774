"""How often a lossless method writes another token than plain decoding, by dtype, and what forwards of one shape change about it.

    python -m benchmarks.identity [--model bundled] [--drafter bundled] [--dtypes bfloat16 float16 float32] [--prompts 32] [--seed 1]

In exact arithmetic it never happens. Rounded numbers depend on how many tokens a forward reads, and now and then they turn a near tie. "Once in": tokens read
until one differs, over all images; an image is its own from there on. *One shape*: every forward, plain decoding's too, has as many tokens as the largest
tree and reads all cache columns.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.app.benchmark import PRESETS, sources
from adt_core.app.generation import choose_device
from adt_core.app.report import PLAIN
from adt_core.engine.lanes import Lanes
from adt_core.models.graphs import repeat_first, stretched
from adt_core.models.rows import Step

from .harness import captions

FIRST = 4200  # held-out caption of this benchmark
METHODS = ("adt-tree", "jacobi", "merged")


class OneShape(Decoding):
    """Every forward has COUNT tokens."""

    COUNT = 32

    def _forward(self, codes: Tensor, step: Step, lanes: Lanes) -> Tensor:
        ids, slots = lanes.rows.spread(self.target.decoder.image_ids[codes]), lanes.cache.data.shape[4]
        step = Step(*stretched(step, self.COUNT, slots, slots - 1))
        return self.target.decoder(repeat_first(ids, self.COUNT), step, lanes.cache, self._rope)[:, : codes.shape[1]]


def drawn(kind: type[Decoding], target, prompts: list, seed: int, drafting: Drafting, drafter=None) -> Tensor:
    """Codes of every prompt, [prompts, T], one after another: rows that are read together would count as another shape."""
    codes = []
    for prompt in prompts:
        decoding = kind(target, [prompt], sampling=Sampling(seed=seed), drafting=drafting, drafter=drafter)
        for _ in decoding:
            pass
        codes.append(decoding.codes[0])
    return torch.stack(codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16", "float32"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device = choose_device("auto")
    print(f"{device}, torch {torch.__version__}, {args.prompts} prompts, guidance 3, temperature 1\n")
    print(
        "| dtype | forwards | method | identical images | equal tokens | another token once in |\n|---|---|---|---|---|---|"
    )
    for dtype in args.dtypes:
        target = load_target(args.model, device, getattr(torch, dtype))
        drafters = sources(load_drafter(args.drafter, target))
        prompts = [target.encode_prompt(caption) for caption in captions(FIRST, args.prompts)]
        for said, kind in (("as they come", Decoding), ("one shape", OneShape)):
            plain = drawn(kind, target, prompts, args.seed, PRESETS[PLAIN].drafting)
            for name in METHODS:
                same = (
                    drawn(kind, target, prompts, args.seed, PRESETS[name].drafting, drafters[PRESETS[name].source])
                    == plain
                )
                agreed = int(same.cumprod(1).sum())
                different = len(same) - int(same.all(1).sum())
                once = f"{agreed / different:,.0f}" if different else f"never, in {agreed:,}"
                print(
                    f"| {dtype} | {said} | {name} | {len(same) - different} of {len(same)} | {same.float().mean():.1%} | {once} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
