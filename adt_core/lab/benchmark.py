"""Command `python adt.py benchmark`: compare methods on the same prompts, side by side.

Plain decoding (without drafts) is always measured too. The methods take turns (:mod:`adt_core.run.race`): all of them
decode a prompt before the next prompt.

When all methods have finished a prompt, the results are appended to `runs.jsonl` in the benchmark's folder. A benchmark
that was interrupted continues with the first missing prompt. Shards on several machines can share the folder. The
images are in the folders `images/METHOD`. If a method decodes the same tokens as plain decoding, no image is saved for
this method. Its results then refer to the image of plain decoding.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ..app import workers
from ..app.args import BenchmarkArgs, QualityArgs, WorkerArgs, given_paths
from ..app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW, Drafter, with_window, without_window
from ..errors import AdtError, Check, pip_install
from ..files import read_text, write_in
from ..models.cpu import processor
from ..models.target import Target
from ..policies import DEFAULT, PLAIN, RELAXED
from ..recipe import Placement, Recipe
from ..run import race
from ..run.images import check_outputs, open_image
from ..run.jobs import JobList, PromptEntry
from ..run.model_files import model_files
from ..run.pipeline import Pipeline
from ..run.resolve import Hardware, choose_device, resolve_recipe
from ..run.runner import Finished
from ..settings import BUNDLED
from ..version import VERSION
from . import quality, report
from .presets import COMPARED, COMPARED_WITHOUT_NETWORK, NETWORK, Preset, find_preset, presets, read_methods
from .records import RUNS, WHOLE, append, open_records, saved_settings

REMAINING = "run the other shards, and then this command without `shard` for the complete tables."
"""What to do if a shard has finished, but prompts of other shards are missing."""
WARM_UP = 8
"""Number of rounds (target forward passes) of each method before the measurements."""


def drafters_by_name(drafter: Drafter | None) -> dict[str, Drafter]:
    """Return all available drafters by their names in `Preset.source`.

    Drafters that need no files, such as "jacobi", are always available. If `drafter` has a network, "network" is the
    network without a Jacobi window, and "network+jacobi" is the network with one.
    """
    drafters = {name: make() for name, make in DRAFTERS.items()}
    network = without_window(drafter) if drafter is not None else None
    if network is not None:
        drafters |= {NETWORK: network, NETWORK + WITH_WINDOW: with_window(network)}
    return drafters


def has_network(drafter: Drafter | None) -> bool:
    """Return whether a drafter has a network, which most methods need."""
    return NETWORK in drafters_by_name(drafter)


@dataclass(frozen=True)
class Benchmark:
    """Prompts and methods to compare. Each method generates one image per prompt.

    Attributes:
        methods: Names of the methods to compare with plain decoding.
        recipe: Settings that all methods share. Methods that need a drafter network use the recipe's drafter. The
            settings of LANTERN apply only to methods with the suffix `+lantern`.
        metrics: Quality metrics of single images, by name.
        available: Presets of all methods that can be compared, by name.
    """

    prompts: list[str]
    methods: list[str]
    recipe: Recipe
    metrics: dict[str, quality.ImageMetric] = field(default_factory=dict)
    available: dict[str, Preset] = field(default_factory=presets)

    def __post_init__(self) -> None:
        assert self.presets  # checks the names of the methods

    @property
    def presets(self) -> dict[str, Preset]:
        """Presets of the compared methods by name, plain decoding first."""
        return {name: find_preset(name, self.available, self.recipe.lantern) for name in (PLAIN, *self.methods)}

    def files(self, folder: Path) -> list[Path]:
        """Return the paths of the output files, and of the images that already exist."""
        images = (path for method in self.presets for path in (folder / _image_folder(method)).glob("*.png"))
        return [*(folder / name for name in (RUNS, *report.FILES)), *images]

    def pipelines(self, loaded: Pipeline) -> dict[str, Pipeline]:
        """Return a pipeline for each method, by name, with the model and drafter that the user has chosen.

        Raises:
            AdtError: If a method needs a drafter network, but the drafter has no network.
        """
        drafters = drafters_by_name(loaded.drafter)
        network = (self.recipe.drafter or JACOBI).removesuffix(WITH_WINDOW)
        pipelines = {}
        for name, (drafting, source, lantern) in self.presets.items():
            if source and source not in drafters:
                raise AdtError("methods.needs_drafter", name=name)
            path = source.replace(NETWORK, network) or None
            recipe = replace(self.recipe, drafting=drafting, lantern=lantern, drafter=path)
            pipelines[name] = Pipeline(loaded.target, recipe, drafters.get(source))
        return pipelines

    def settings(self, target: Target) -> dict:
        """Return everything that affects the results: models, methods, prompts, software and hardware.

        All results in a folder must have the same settings.
        """
        decoder = target.decoder
        shared = self.recipe.as_loaded(target.loaded).sections()
        methods = {
            name: {**drafting.flat(), "source": source, "lantern": lantern and asdict(lantern)}
            for name, (drafting, source, lantern) in self.presets.items()
        }
        return {
            "model": target.name,
            "drafter": self.recipe.drafter,
            "methods": methods,
            "suffix": self.recipe.suffix,
            "metrics": list(self.metrics),
            "prompts": self.prompts,
            "grid": list(target.grid),
            "engine": f"ADT-Tree {VERSION}",
            "commit": _commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if decoder.embedding.is_cuda else processor(),
            "threads": torch.get_num_threads(),
            **{name: shared[name] for name in ("sampling", "lantern", "dtype", "weights", "exact")},
        }


def _commit() -> str | None:
    """Return the git commit of this node pack; None if the folder of the pack is not the root of a git checkout."""
    try:
        git = Path(__file__).parents[2] / ".git"
        if git.is_file():  # in a worktree, this file names the folder
            git = git.parent / read_text(git, 1).removeprefix("gitdir:").strip()
        *_, last = read_text(git / "logs" / "HEAD", 64, errors="replace").splitlines()
        _, commit, *_ = last.split()  # a line begins with the commits before and after a change of HEAD
    except (OSError, ValueError):
        return None
    return commit


def _image_folder(method: str) -> str:
    """Return the folder of a method's images, relative to the benchmark's folder."""
    return f"images/{re.sub('[^-+.=,A-Za-z0-9_]', '-', method)}"


Measured = dict[str, tuple[dict, bytes | None]]
"""Results of a prompt by method, plain decoding first.

A result is a pair (run statistics, PNG). The PNG is None if the method decodes the same tokens as plain decoding.
"""


class BenchmarkWorker:
    """Worker with loaded models. A call decodes one prompt by all methods.

    Args:
        pipelines: Result of `Benchmark.pipelines`.
        progress: Progress callback of :func:`.race.turn`.
        warming: Progress callback of the warm-up, which is called in the same way.

    Attributes:
        facts: Result of `Benchmark.settings`.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        pipelines: dict[str, Pipeline],
        check: Check | None = None,
        progress: Callable[[int, str], None] | None = None,
        warming: Callable[[int, str], None] | None = None,
    ):
        self.benchmark = benchmark
        self.facts = benchmark.settings(pipelines[PLAIN].target)
        self._pipelines = pipelines
        self._check = check
        self._progress = progress
        self._warming = warming
        self._is_warm = False

    def __call__(self, number: int) -> Iterator[tuple[int, Measured]]:
        """Decode a prompt by all methods, in an order that depends on the index of the prompt.

        Yields:
            A single pair: the index of the prompt, and its results.
        """
        prompts = self.benchmark.prompts
        if not self._is_warm:
            race.turn({name: partial(self._warm_up, name) for name in self._pipelines}, prompts[0], 0, self._warming)
        self._is_warm = True
        runs = {name: partial(self._decode, name) for name in self._pipelines}
        images = race.turn(runs, prompts[number], number, self._progress)
        plain = np.array(images[PLAIN].codes)
        measured = Measured()
        for name, image in images.items():
            agreement = float((np.array(image.codes) == plain).mean())
            png = image.result(benchmark_method=name).png if name == PLAIN or agreement < 1 else None
            trace = image.decoding.trace
            measured[name] = {**trace.report(), "agreement": agreement, "acceptance": trace.acceptance_map()}, png
        yield number, measured

    def _warm_up(self, name: str, prompt: str) -> None:
        race.warm_up([self._pipelines[name].decoding([prompt], check=self._check)], WARM_UP)

    def _decode(self, name: str, prompt: str) -> Finished:
        pipeline = self._pipelines[name]
        [job] = JobList([PromptEntry("1", prompt)], pipeline.recipe)
        *_, last = pipeline.run([job], check=self._check)
        return last.finished[0]


def load(benchmark: Benchmark, placement: Placement) -> BenchmarkWorker:
    """Load the models of a benchmark.

    Raises:
        AdtError: If a model cannot be loaded, or a prompt is invalid.
    """
    pipelines = benchmark.pipelines(Pipeline.of(benchmark.recipe, placement))
    pipelines[PLAIN].check(benchmark.prompts)
    return BenchmarkWorker(benchmark, pipelines)


def measure_missing(worker: BenchmarkWorker, folder: Path) -> Iterator[dict]:
    """Measure the missing prompts in this process.

    Yields:
        A record for every prompt. Records that are already in the folder come first. A record has the entries `prompt`
        (index of the prompt), `text` (the prompt) and `runs`. `runs` maps each method to its run statistics and
        conditions, such as the cost profile that the device may have learned before, with four more entries:

        - `agreement`: share of tokens that equal the token of plain decoding at the same position.
        - `acceptance`: for each cell of the image, the number of tokens that were decoded in the same round.
        - `picture`: path of the image relative to `folder`.
        - `quality`: scores of the image, by column.
    """
    return collect(worker.benchmark, worker.facts, folder, lambda numbers: chain.from_iterable(map(worker, numbers)))


def collect(
    benchmark: Benchmark,
    settings: dict,
    folder: Path,
    mapped: Callable[[list[int]], Iterable[tuple[int, Measured]]],
    shard: tuple[int, int] = WHOLE,
) -> Iterator[dict]:
    """Measure the missing prompts, and write their images and records.

    Args:
        settings: Result of `Benchmark.settings`.
        mapped: Function that measures prompts. Its argument is a list of indices of prompts. It returns a pair
            (index, results) for each of these prompts, in any order.
        shard: (I, N): measure every N-th prompt, from the I-th on.

    Yields:
        A record for every prompt of this shard, and for every prompt that other shards have measured; see
        :func:`measure_missing`.
    """
    done = open_records(folder, settings, shard)
    yield from done
    missing = set(range(len(benchmark.prompts))[shard[0] - 1 :: shard[1]]) - {record["prompt"] for record in done}
    for number, measured in mapped(sorted(missing)):
        record = _save(benchmark, number, measured, folder)
        append(folder, record, shard)
        yield record


def _save(benchmark: Benchmark, number: int, measured: Measured, folder: Path) -> dict:
    """Write the images of a prompt, compute their quality scores, and return the record of the prompt."""
    prompt = benchmark.prompts[number]
    runs = {}
    plain: dict = {}
    for name, (figures, png) in measured.items():
        result = plain
        if png is not None:
            path = f"{_image_folder(name)}/{number + 1:04}.png"
            write_in(folder, path, png)
            with open_image(BytesIO(png)) as image:
                by_metric = [metric(image, prompt) for metric in benchmark.metrics.values()]
            scores = {column: score for columns in by_metric for column, score in columns.items()}
            result = {"picture": path, "quality": scores}
        plain = plain or result
        runs[name] = {**figures, **result}
    return {"prompt": number, "text": prompt, "runs": runs}


def plan(args: BenchmarkArgs, parallel: WorkerArgs, given: Mapping[str, Any], device: str) -> Benchmark:
    """Check the arguments before a model is loaded, and return the benchmark without metrics.

    Args:
        given: Settings of the recipe, by option name.
        device: "auto", "cpu" or "cuda".
    """
    workers.check_args(parallel, args.prompts)
    _ = args.stride  # raises an error if it is not valid
    given = {**given, "method": given.get("method") or DEFAULT + RELAXED}  # the values of LANTERN that suit the model
    recipe = resolve_recipe(given, Hardware.of(device))
    methods = args.methods or (COMPARED if recipe.drafter != JACOBI else COMPARED_WITHOUT_NETWORK)
    prompts = read_prompts(BUNDLED_CAPTIONS if args.prompts == BUNDLED else args.prompts, args.caption)
    prompts = sample(prompts, args.count, args.sample_seed) if args.count else prompts
    kind = choose_device("auto").type if device == "auto" else device
    available = presets(kind, recipe.sampling.guided)
    return Benchmark(prompts, read_methods(methods), recipe, available=available)


def run(
    args: BenchmarkArgs, quality_args: QualityArgs, parallel: WorkerArgs, given: Mapping[str, Any], placement: Placement
) -> str:
    """Run a benchmark, write its report, and return it in Markdown with the paths of the files.

    Args:
        given: Settings of the recipe, by option name.

    Raises:
        AdtError: If an argument is invalid, a model cannot be loaded, or a file cannot be written.
    """
    device = placement.device
    benchmark = plan(args, parallel, given, device)
    folder = args.output
    _check_files(benchmark, args, quality_args)
    scoring = choose_device(device if parallel.ray_address is None else "auto")
    count = len(benchmark.prompts)
    metrics = quality.choose_metrics(**quality_args.flat(), count=count, device=scoring)
    build = partial(load, benchmark, placement)
    benchmark = replace(benchmark, metrics=metrics.images)  # only this process scores images
    with workers.start_workers(build, parallel, device, count) as ((own, *others), mapped):
        pairs = [(name, value, other[name]) for other in others for name, value in own.items()]
        if differing := [f"{name} ({here}, {there})" for name, here, there in pairs if here != there]:
            raise AdtError("benchmark.other_machines", names=", ".join(differing))
        settings = own | {"metrics": list(metrics.images)}
        settings |= {"workers": parallel.workers} if parallel.uses_ray else {}
        first, step = args.stride
        mine = range(count)[first - 1 :: step]
        records = []
        with tqdm(total=len(mine), unit=" prompts", leave=False) as bar:
            for record in collect(benchmark, settings, folder, mapped, args.stride):
                records.append(record)
                bar.update(record["prompt"] in mine)  # other shards' records don't count
    table, paths = write_results(benchmark, records, settings, folder, metrics)
    table += _missing(records, count)
    has_plots = any(path.suffix == ".png" for path in paths)
    remedy = "" if has_plots else f"\nThe plots need matplotlib: {pip_install('matplotlib')}, then run this again."
    return table + "\n" + ", ".join(map(str, paths)) + remedy


def merge(folder: Path) -> str:
    """Write and return the report of all shards in a folder. It has no scores of all images together, such as FID.

    Raises:
        AdtError: If the folder contains no valid results, or a file cannot be written.
    """
    settings = saved_settings(folder)
    records = sorted(open_records(folder, settings), key=lambda record: record["prompt"])
    if not records:
        raise AdtError("benchmark.no_results", folder=folder)
    table, _ = report.write(records, settings, folder)
    return table + _missing(records, len(settings["prompts"]))


def _missing(records: list[dict], count: int) -> str:
    return f"\n{len(records)} of {count} prompts are measured; {REMAINING}" if len(records) < count else ""


def write_results(
    benchmark: Benchmark, records: list[dict], settings: dict, folder: Path, metrics: quality.QualityMetrics
) -> tuple[str, list[Path]]:
    """Score all images of each method together, and write the report. Result and errors as in :func:`.report.write`."""
    records.sort(key=lambda record: record["prompt"])
    images = {name: [folder / record["runs"][name]["picture"] for record in records] for name in benchmark.presets}
    sets = metrics.sets(images) if metrics.sets else {}
    return report.write(records, settings, folder, sets, metrics.note)


def _check_files(benchmark: Benchmark, args: BenchmarkArgs, quality_args: QualityArgs) -> None:
    """Raise AdtError if an output file cannot be written, or would replace an input file."""
    inputs = model_files(benchmark.recipe.loading.model, benchmark.recipe.drafter or JACOBI)
    inputs += [*given_paths(args, "prompts"), *given_paths(quality_args, *quality_args.weights())]
    inputs += [(option, file) for option, path in inputs if path.is_dir() for file in path.rglob("*")]
    check_outputs([("output", path) for path in benchmark.files(args.output)], inputs)
