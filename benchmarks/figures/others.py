"""Figures on *auto*, on batches, on half precision, and on the relation between draft trees and image detail."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Target, load_drafter, load_target
from adt_core.app.pipeline import Pipeline
from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from adt_core.recipe import Recipe

from ..auto import METHODS, cells, measure, workers
from ..harness import SAMPLING, bundled, captions, comparison
from ..interleaving import format_interval, format_median, interleave, median_with_interval, table
from .parts import FigurePart

SETS = {"grammar": "captions", "ordinary": "ordinary prompts"}


def measure_auto(count: int) -> list[dict]:
    """Measure *auto* and other methods on both `SETS`. Every process starts with an empty cache of costs."""
    lines = []
    for kind in SETS:
        with workers(list(METHODS)) as started:
            lines += measure(started, kind, 1, count)
    return lines


def tables_of_auto(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``auto``. See `FigurePart.tables`."""
    columns = ["prompts", "method", "speed-up over plain", "lowest of an image", "identical"]
    rows = ([SETS[kind], *rest] for kind, _, *rest in map(cells, lines))
    return {"auto": table(columns, rows)}


BATCH_SIZES = (1, 2, 4, 8, 16)
REPEATS = 2
BATCHED = {PLAIN: "plain", "auto": "auto"}


def measure_together(count: int) -> list[dict]:
    """Measure the throughput for each method and batch size.

    The results also contain how many images are equal to the images of plain decoding with batch size 1.
    """
    prompts = captions(3200, count)
    indices = list(range(count))
    pipelines = comparison({name: PRESETS[name] for name in BATCHED}, prompts).pipelines(
        bundled(), load_drafter("bundled", bundled())
    )

    def run(_: int, name: str, batch_size: int) -> tuple[float, Tensor]:
        batches = [slice(i, i + batch_size) for i in range(0, count, batch_size)]
        decodings = [pipelines[name].decoding(prompts[batch], indices[batch]).run() for batch in batches]
        seconds = sum(decoding.trace.report()["seconds"] for decoding in decodings)
        return seconds, torch.cat([decoding.codes for decoding in decodings])

    for name, batch_size in product(BATCHED, BATCH_SIZES):
        (pipelines[name].decoding(prompts[:batch_size])).warm_up()
    runs = {(name, size): partial(run, name=name, batch_size=size) for name, size in product(BATCHED, BATCH_SIZES)}
    results = list(interleave(runs, range(REPEATS)))
    single = [result[PLAIN, 1] for result in results]
    lines = []
    for name, batch_size in runs:
        measured = [result[name, batch_size] for result in results]
        times = [plain[0] / other[0] for plain, other in zip(single, measured)]
        line = {"method": name, "at once": batch_size, "times": [float(np.median(times)), min(times), max(times)]}
        line["rate"] = 60 * count / float(np.median([seconds for seconds, _ in measured]))
        identical = (measured[0][1] == single[0][1]).all(-1).sum().item()
        lines.append(line | {"same": f"{identical} of {count}"})
    return lines


def tables_of_together(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``together``. See `FigurePart.tables`."""
    columns = [
        "method",
        "batch size",
        "images per minute",
        "speed-up over plain decoding of single images (minimum to maximum)",
        "identical",
    ]
    rows = (
        [BATCHED[line["method"]], line["at once"], f"{line['rate']:.1f}", format_interval(line["times"]), line["same"]]
        for line in lines
    )
    return {"together": table(columns, rows)}


HALF = {
    "plain": METHODS[PLAIN],
    "window, a chain": METHODS["chain of 16"],
    "ADT-Tree": METHODS["ADT-Tree"],
    "network and window": METHODS["network and window, 24"],
}
MODES = {"on": True, "off": False}


def _decode_one(pipeline: Pipeline, prompt: str) -> Decoding:
    return pipeline.decoding([prompt]).run()


def _half_job(target: Target, drafter: str, drafting: Drafting) -> Pipeline:
    return Pipeline(target, Recipe(SAMPLING, drafting), load_drafter(drafter, target))


def measure_half(count: int) -> list[dict]:
    """Measure plain decoding and other methods in bfloat16, with the batch-invariant mode on and off."""
    prompts = captions(3600, count)
    pipelines = {}
    for mode, exact in MODES.items():
        target = load_target(dtype=torch.bfloat16, exact=exact)
        pipelines |= {(name, mode): _half_job(target, *options) for name, options in HALF.items()}
    for pipeline in pipelines.values():
        pipeline.decoding(prompts[:1]).warm_up()
    runs = {(name, mode): partial(_decode_one, pipelines[name, mode]) for name, mode in product(HALF, MODES)}
    results = list(interleave(runs, prompts))
    seconds = {key: np.array([result[key].trace.report()["seconds"] for result in results]) for key in pipelines}
    lines = []
    for name, mode in product(HALF, MODES):
        line = {"method": name, "exact": mode, "seconds": float(np.median(seconds[name, mode]))}
        line["times"] = median_with_interval(seconds["plain", mode] / seconds[name, mode])
        line["cost"] = median_with_interval(seconds[name, "on"] / seconds[name, "off"]) if MODES[mode] else None
        identical = sum(result[name, mode].codes.equal(result["plain", mode].codes) for result in results)
        lines.append(line | {"same": f"{identical} of {count}"})
    return lines


def tables_of_half(lines: list[dict]) -> dict[str, str]:
    """Return a table with the name ``half``, and a short text with the name ``exact``. See `FigurePart.tables`.

    The text is the range of the cost of the batch-invariant mode: decoding time with the mode divided by decoding time
    without it.
    """
    columns = ["method", "exact", "seconds per image", "speed-up over plain", "seconds, on / off", "identical"]
    rows = [
        [
            line["method"],
            line["exact"],
            line["seconds"],
            format_interval(line["times"]),
            format_interval(line["cost"]) if line["cost"] else "",
            line["same"],
        ]
        for line in lines
    ]
    costs = [line["cost"][0] for line in lines if line["cost"]]
    return {"half": table(columns, rows), "exact": f"{min(costs):.2f} to {max(costs):.2f}"}


REGIONS = ("adt-tree", "jacobi", "merged")
QUARTERS = 4


def detail(pixels: Tensor, downsample: int) -> np.ndarray:
    """Return a measure of image detail for each token: the mean absolute gradient of the pixels.

    The mean is taken over the token and its neighbours, a square of 3 x 3 tokens.

    Args:
        pixels: [3, H, W]: RGB, height, width.
        downsample: Number of pixels per token in each direction.

    Returns:
        [T] for the T tokens of the image, in raster order.
    """
    gray = pixels.mean(0)
    gradient = torch.zeros_like(gray)
    gradient[:, 1:] += gray.diff(dim=1).abs()
    gradient[1:] += gray.diff(dim=0).abs()
    squares = torch.nn.functional.avg_pool2d(gradient[None, None], downsample)
    return torch.nn.functional.avg_pool2d(squares, 3, 1, 1, count_include_pad=False).flatten().numpy()


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation. Equal values get the mean of their ranks.

    Args:
        a: Values. If all of them are equal, the result is 0.
        b: Values to compare with.
    """

    def ranks(x: np.ndarray) -> np.ndarray:
        # Example: x = [5, 3, 5]. The distinct values are [3, 5], so inverse = [1, 0, 1] and counts = [1, 2].
        # Value 3 has rank 1. Value 5 has ranks 2 and 3, so its mean rank is 2.5. The result is [2.5, 1, 2.5].
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1]) if np.ptp(a) else 0.0


def _image_figures(busy: np.ndarray, depth: np.ndarray, emitted: np.ndarray) -> list[float]:
    """Return the figures of one image.

    If a round decodes n tokens, each of its tokens costs 1 / n forwards. The mean number of tokens per forward is
    therefore a harmonic mean.

    Args:
        busy: Detail around each token.
        depth: Depth of the tree in the round that decoded the token.
        emitted: Number of tokens that this round decoded.

    Returns:
        Rank correlation of detail with depth, rank correlation of detail with `emitted`, mean depth in each quarter of
        the tokens, and mean number of tokens per forward in each quarter. The first quarter has the lowest detail.
    """
    quarters = np.array_split(np.argsort(busy, kind="stable"), QUARTERS)
    depths = [float(depth[part].mean()) for part in quarters]
    tokens_per_forward = [float(1 / np.mean(1 / emitted[part])) for part in quarters]
    return [spearman(depth, busy), spearman(emitted, busy), *depths, *tokens_per_forward]


def measure_regions(count: int) -> dict[str, list]:
    """Measure how tree depth and accepted tokens depend on the detail of the image around a token.

    The first token of an image is omitted, because no round decodes it.

    Args:
        count: Number of prompts.

    Returns:
        For each method, the figures of each image from `_image_figures`.
    """
    prompts = captions(1000, count)
    pipelines = comparison({name: PRESETS[name] for name in REGIONS}, prompts).pipelines(
        bundled(), load_drafter("bundled", bundled())
    )
    figures: dict[str, list] = {}
    for name in REGIONS:
        pipeline = pipelines[name]
        decoding = pipeline.decoding(prompts).run()
        with torch.inference_mode():
            images = pipeline.target.pixels(decoding.grid_codes())
        figures[name] = []
        for number, pixels in enumerate(images):
            busy = detail(pixels.float(), pipeline.target.downsample)[1:]
            maps = (decoding.trace.token_map(figure, number) for figure in ("depth", "acceptance"))
            depth, emitted = (np.array(values).flatten()[1:] for values in maps)
            figures[name].append(_image_figures(busy, depth, emitted))
    return figures


def tables_of_regions(figures: dict[str, list]) -> dict[str, str]:
    """Return the table, by its name ``regions``. See `FigurePart.tables`."""
    columns = [
        "method",
        "Spearman of depth",
        "of tokens per round",
        "depth, smoothest to busiest quarter",
        "tokens per forward",
    ]
    rows = []
    for name, images in figures.items():
        values = np.array(images).T
        means = [f"{mean:.2f}" for mean in values[2:].mean(1)]
        rows.append([name, *map(format_median, values[:2]), ", ".join(means[:QUARTERS]), ", ".join(means[QUARTERS:])])
    return {"regions": table(columns, rows)}


PARTS = {
    "auto": FigurePart(6, measure_auto, tables_of_auto),
    "together": FigurePart(32, measure_together, tables_of_together),
    "half": FigurePart(3, measure_half, tables_of_half),
    "regions": FigurePart(16, measure_regions, tables_of_regions),
}
