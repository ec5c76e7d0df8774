"""What the benchmarks share: prompts, interleaved runs, ratios with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from adt_core import Decoding, Drafting, Sampling, Target
from training.data import example

HELD_OUT_SEED = 2
PLAIN = "autoregressive"


def captions(start: int, count: int) -> list[str]:
    """Held-out captions ``start`` .. ``start + count - 1``: never trained on."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def decode(target: Target, drafter, prompt: str, sampling: Sampling, drafting: Drafting) -> Decoding:
    """Decode one image to the end; its figures are in ``.trace.report()``."""
    decoding = Decoding(target, [target.encode_prompt(prompt)], sampling=sampling, drafting=drafting, drafter=drafter)
    for _ in decoding:
        pass
    return decoding


def interleaved(runs: dict[str, Callable[[str], dict]], prompts: list[str], seed: int = 0) -> dict[str, list[dict]]:
    """Every run on every prompt, in an order drawn anew for each prompt; one uncounted round first.

    A run maps a prompt to a report with at least ``seconds``. Runs of one prompt stand side by side in time, so
    their ratio survives a machine whose speed drifts.
    """
    rng = np.random.default_rng(seed)
    for run in runs.values():
        run(prompts[0])
    reports: dict[str, list[dict]] = {name: [] for name in runs}
    for prompt in prompts:
        for name in rng.permutation(list(runs)):
            reports[name].append(runs[name](prompt))
    return reports


def ratios(reports: dict[str, list[dict]], of: str, to: str) -> np.ndarray:
    """Seconds of ``of`` / seconds of ``to``, prompt by prompt: above 1, ``to`` is faster."""
    return np.array([a["seconds"] / b["seconds"] for a, b in zip(reports[of], reports[to])])


def interval(values: np.ndarray, draws: int = 4000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (draws, len(values))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def table(reports: dict[str, list[dict]]) -> str:
    """Markdown: median ratio to plain decoding with its interval and range, tau, depth, work and seconds."""
    lines = ["| method | SR (median) | 95 % interval | range | tau | mean depth | target forwards | drafter forwards | verified nodes | seconds |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for name, rows in reports.items():
        sr = ratios(reports, PLAIN, name)
        low, high = interval(sr)
        mean = {key: statistics.mean(row[key] for row in rows) for key in
                ("tau", "mean_depth", "target_forwards", "drafter_forwards", "verified_nodes")}
        lines.append(f"| {name} | {np.median(sr):.2f} | {low:.2f} - {high:.2f} | {sr.min():.2f} - {sr.max():.2f} | {mean['tau']:.2f} | "
                     f"{mean['mean_depth']:.2f} | {mean['target_forwards']:.0f} | {mean['drafter_forwards']:.0f} | {mean['verified_nodes']:.0f} | "
                     f"{statistics.median(row['seconds'] for row in rows):.3f} |")
    return "\n".join(lines)
