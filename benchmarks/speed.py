"""Speed of the bundled model: plain decoding, fixed trees, ADT-Tree and confidence pruning, interleaved.

    python -m benchmarks.speed [--prompts 16] [--temperature 1] [--cfg 3] [--threads 2] [--transformers]

Every method writes the same tokens as plain decoding, and the table counts the images in which it did (float32 may part
at a near tie). ``--transformers`` adds transformers' Chameleon on the same weights, with its own cache and both
guidance rows in one batch.
"""

from __future__ import annotations

import argparse
import time

import torch

from adt_core import Drafting, Sampling, Target, load_drafter, load_target
from adt_core.app.jobs import Job
from adt_core.models.checkpoint import resolve
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_core.rules.sampling import noise_table, process_logits
from adt_lab.report import ratios, summary, table

from .harness import captions, interleaved, runner

METHODS = {
    PLAIN: {"method": PLAIN},
    "eagle2 coupled": {"method": "eagle2"},
    "eagle2 top-k": {"method": "eagle2", "proposal": "top-k"},
    "adt-tree coupled": {"method": "adt-tree"},
    "adt-tree top-k": {"method": "adt-tree", "proposal": "top-k"},
    # The sweep's choices.
    "eagle2 best fixed": {"method": "eagle2", "depth": 2, "width": 1, "nodes": 2},
    "eagle2 pruned": {
        "method": "eagle2", "depth": 8, "width": 3, "nodes": 8, "expand_above": 0.6, "keep_above": 0.05,
    },
    "adt-tree pruned": {
        "method": "adt-tree", "depth": 4, "width": 3, "nodes": 8, "depth_max": 8, "expand_above": 0.5,
        "keep_above": 0.1,
    },
}  # fmt: skip
EVALUATION = 1000  # first held-out caption of the evaluation set; sweeps use another set


class TransformersDecoding:
    """Plain decoding by transformers' modules: ``model.model`` and ``lm_head`` with a DynamicCache."""

    def __init__(self, target: Target, sampling: Sampling):
        from transformers import ChameleonForConditionalGeneration

        self._target, self._sampling, folder = target, sampling, resolve("bundled", "target")
        self._model = ChameleonForConditionalGeneration.from_pretrained(folder).float().eval()

    @torch.inference_mode()
    def __call__(self, prompt: str) -> tuple[dict, torch.Tensor]:
        """The figures that tables need, and the codes [T]."""
        started = time.perf_counter()
        target, ids = self._target, self._target.decoder.image_ids
        conditional = target.encode_prompt(prompt)
        rows = [conditional, target.unconditional(conditional)]
        longest, length = max(map(len, rows)), target.grid[0] * target.grid[1]
        x = torch.tensor([[row[0]] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        noise = noise_table(self._sampling, [0], length, target.num_codes, torch.empty(0))
        cache, codes = None, []
        for at in range(length):
            positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -x.shape[1] :]
            out = self._model.model(
                input_ids=x, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            c, u = self._model.lm_head(out.last_hidden_state[:, -1])[:, ids].chunk(2)
            z = process_logits(u + self._sampling.guidance * (c - u), self._sampling)
            codes.append((z if noise is None else z + noise[:, at]).argmax(-1))
            x = ids[codes[-1]].expand(2, 1)
            mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
        none = dict.fromkeys(("mean_depth", "drafter_forwards", "verified_nodes", "substitution_rate"), 0)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "tau": 1.0, "target_forwards": length - 1, **none}, torch.cat(codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cfg", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--transformers", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = load_target()
    drafter = load_drafter("bundled", target)
    sampling = Sampling(seed=1, temperature=args.temperature, guidance=args.cfg)
    runs = {
        name: runner(Job(target, Recipe(sampling, Drafting(**options)), drafter)) for name, options in METHODS.items()
    }
    if args.transformers:
        runs["transformers"] = TransformersDecoding(target, sampling)
    records = interleaved(runs, captions(EVALUATION, args.prompts))
    print(table(summary(records), args.prompts))
    if args.transformers:
        print(f"plain decoding is {ratios(records, 'transformers', PLAIN).mean():.2f} times as fast as transformers")


if __name__ == "__main__":
    main()
