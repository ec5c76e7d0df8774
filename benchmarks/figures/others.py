"""*auto* beside its sources, several images at once, half precision, and what the trees have to do with the picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Target, load_drafter, load_target
from adt_core.app.jobs import Job, decode, warm_up
from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe

from ..auto import METHODS, cells, measure, workers
from ..harness import SAMPLING, bundled, captions, comparison
from ..interleaving import format_interval, format_median, interleave, median_with_interval, table
from .parts import Part

SETS = {"grammar": "captions", "ordinary": "ordinary prompts"}


def measure_auto(count: int) -> list[dict]:
    lines = []
    for kind in SETS:
        with workers(list(METHODS)) as ready:
            lines += measure(ready, kind, 1, count)
    return lines


def tables_of_auto(lines: list[dict]) -> dict[str, str]:
    columns = ["prompts", "method", "times plain", "worst image", "identical"]
    shown = ([SETS[kind], *rest] for kind, _, *rest in map(cells, lines))
    return {"auto": table(columns, shown)}


AT_ONCE = (1, 2, 4, 8)
REPEATS = 2
TOGETHER = {PLAIN: "plain", "auto": "auto"}


def measure_together(count: int) -> list[dict]:
    """Images a minute by method and number at once; every image is compared with the one that is drawn alone."""
    prompts, numbers = captions(3200, count), list(range(count))
    jobs = comparison({name: PRESETS[name] for name in TOGETHER}, prompts).jobs(
        bundled(), load_drafter("bundled", bundled())
    )

    def run(_: int, name: str, at_once: int) -> tuple[float, Tensor]:
        parts = [slice(i, i + at_once) for i in range(0, count, at_once)]
        drawn = [decode(jobs[name].decoding(prompts[part], numbers[part])) for part in parts]
        return sum(one.trace.report()["seconds"] for one in drawn), torch.cat([one.codes for one in drawn])

    for name, at_once in product(TOGETHER, AT_ONCE):
        warm_up(jobs[name].decoding(prompts[:at_once]))
    runs = {(name, at_once): partial(run, name=name, at_once=at_once) for name, at_once in product(TOGETHER, AT_ONCE)}
    turns = list(interleave(runs, range(REPEATS)))
    lines, alone = [], [turn[PLAIN, 1] for turn in turns]
    for name, at_once in runs:
        mine = [turn[name, at_once] for turn in turns]
        times = [one[0] / other[0] for one, other in zip(alone, mine)]
        line = {"method": name, "at once": at_once, "times": [float(np.median(times)), min(times), max(times)]}
        line["rate"] = 60 * count / float(np.median([seconds for seconds, _ in mine]))
        lines.append(line | {"same": f"{(mine[0][1] == alone[0][1]).all(-1).sum().item()} of {count}"})
    return lines


def tables_of_together(lines: list[dict]) -> dict[str, str]:
    columns = ["method", "at once", "images a minute", "times plain, one by one (least to most)", "identical"]
    shown = (
        [TOGETHER[line["method"]], line["at once"], f"{line['rate']:.1f}", format_interval(line["times"]), line["same"]]
        for line in lines
    )
    return {"together": table(columns, shown)}


HALF = {
    "plain": METHODS[PLAIN],
    "window, a chain": METHODS["chain of 16"],
    "ADT-Tree": METHODS["ADT-Tree"],
    "network and window": METHODS["network and window, 24"],
}
MODES = {"on": True, "off": False}


def runner(job: Job) -> Callable[[str], Decoding]:
    return lambda prompt: decode(job.decoding([prompt]))


def _half(target: Target, drafter: str, drafting: Drafting) -> Job:
    return Job(target, Recipe(SAMPLING, drafting), load_drafter(drafter, target))


def measure_half(count: int) -> list[dict]:
    """In bfloat16, plain decoding and drafting, with the exact mode on and off."""
    jobs, prompts = {}, captions(3600, count)
    for mode, exact in MODES.items():
        target = load_target(dtype=torch.bfloat16, exact=exact)
        jobs |= {(name, mode): _half(target, *how) for name, how in HALF.items()}
    for job in jobs.values():
        warm_up(job.decoding(prompts[:1]))
    turns = list(interleave({cell: runner(jobs[cell]) for cell in product(HALF, MODES)}, prompts))
    seconds = {cell: np.array([turn[cell].trace.report()["seconds"] for turn in turns]) for cell in jobs}
    lines = []
    for name, mode in product(HALF, MODES):
        line = {"method": name, "exact": mode, "seconds": float(np.median(seconds[name, mode]))}
        line["times"] = median_with_interval(seconds["plain", mode] / seconds[name, mode])
        line["cost"] = median_with_interval(seconds[name, "on"] / seconds[name, "off"]) if MODES[mode] else None
        same = sum(turn[name, mode].codes.equal(turn["plain", mode].codes) for turn in turns)
        lines.append(line | {"same": f"{same} of {count}"})
    return lines


def tables_of_half(lines: list[dict]) -> dict[str, str]:
    columns = "method|exact|seconds an image|times as fast as plain|seconds, on / off|identical".split("|")
    shown = (
        [*(line[name] for name in ("method", "exact", "seconds")), format_interval(line["times"]),
         format_interval(line["cost"]) if line["cost"] else "", line["same"]]
        for line in lines
    )  # fmt: skip
    costs = [line["cost"][0] for line in lines if line["cost"]]
    return {"half": table(columns, shown), "exact": f"{min(costs):.2f} to {max(costs):.2f}"}


REGIONS, QUARTERS = ("adt-tree", "jacobi", "merged"), 4


def detail(pixels: Tensor, downsample: int) -> np.ndarray:
    """pixels [3, H, W] -> mean absolute gradient per token, smoothed over neighbours, flat."""
    gray = pixels.mean(0)
    gradient = torch.zeros_like(gray)
    gradient[:, 1:] += gray.diff(dim=1).abs()
    gradient[1:] += gray.diff(dim=0).abs()
    squares = torch.nn.functional.avg_pool2d(gradient[None, None], downsample)
    return torch.nn.functional.avg_pool2d(squares, 3, 1, 1, count_include_pad=False).flatten().numpy()


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, ties at their mean rank; 0 where all values are one."""

    def ranks(x: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1]) if np.ptp(a) else 0.0


def measure_regions(count: int) -> dict[str, list]:
    """By method, for every image: Spearman of depth and of tokens a round with the detail of the picture around; then
    the depth, and the tokens per forward, of each quarter of the image, from the smoothest to the busiest.

    A token of a round that emitted n took 1 / n of a forward. The first token has no round and is left out.
    """
    prompts, found = captions(1000, count), {}
    jobs = comparison({name: PRESETS[name] for name in REGIONS}, prompts).jobs(
        bundled(), load_drafter("bundled", bundled())
    )
    for name in REGIONS:
        job, decoding = jobs[name], decode(jobs[name].decoding(prompts))
        with torch.inference_mode():
            pictures = job.pixels(decoding.grid_codes())
        found[name] = []
        for image, picture in enumerate(pictures):
            busy = detail(picture.float(), job.target.downsample)[1:]
            maps = (decoding.trace.token_map(figure, image) for figure in ("depth", "acceptance"))
            depth, emitted = (np.array(figures).flatten()[1:] for figures in maps)
            quarters = np.array_split(np.argsort(busy, kind="stable"), QUARTERS)
            forwards = [1 / np.mean(1 / emitted[part]) for part in quarters]
            means = [*(depth[part].mean() for part in quarters), *forwards]
            found[name].append([spearman(depth, busy), spearman(emitted, busy), *map(float, means)])
    return found


def tables_of_regions(found: dict[str, list]) -> dict[str, str]:
    lines = []
    for name, images in found.items():
        values = np.array(images).T
        means = [f"{mean:.2f}" for mean in values[2:].mean(1)]
        quarters = ", ".join(means[:QUARTERS]), ", ".join(means[QUARTERS:])
        lines.append([name, *map(format_median, values[:2]), *quarters])
    columns = "method|Spearman of depth|of tokens a round|depth, smoothest to busiest quarter|tokens per forward"
    return {"regions": table(columns.split("|"), lines)}


PARTS = {
    "auto": Part(6, measure_auto, tables_of_auto),
    "together": Part(8, measure_together, tables_of_together),
    "half": Part(3, measure_half, tables_of_half),
    "regions": Part(16, measure_regions, tables_of_regions),
}
