"""Several methods on the same prompts, side by side: what ``python adt.py benchmark`` runs.

Methods take turns on every prompt, in an order drawn anew for each, so that their ratios survive a machine whose speed
drifts. A prompt is written to ``runs.jsonl`` when all its methods are done; an interrupted benchmark goes on with the
next one. Pictures are in ``images/METHOD``; a method that drew plain decoding's tokens has plain decoding's picture.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ..app import distributed
from ..app.args import BenchmarkArgs, QualityArgs, WorkerArgs
from ..app.checkpoints import load_drafter
from ..app.images import check_outputs, open_image, to_png
from ..app.jobs import conditions, decode, new_decoding, warm_up
from ..app.loading import choose_device, complete, models_of, named, open_target
from ..app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from ..drafters import DRAFTERS, JACOBI, WITH_WINDOW, Drafter, drafter_defaults, with_window, without_window
from ..engine.job import Job
from ..errors import AdtError, Check, pip_install
from ..files import write_in
from ..models.target import Target
from ..policies import PLAIN, POLICIES, Drafting
from ..policies.recipe import Recipe
from ..rules.settings import BUNDLED, Lantern
from ..version import VERSION
from . import quality, report
from .records import RUNS, append, open_records

RELAXED = "+lantern"
NETWORK = "network"
WARM_UP = 8
"""Rounds of each method before anything is measured."""


class Preset(NamedTuple):
    """A method of the benchmark.

    source: what drafts: "network" stands for the drafter that was asked for, "network+jacobi" for both in one tree, ""
    is none. lantern: its acceptance rule; None for the exact one.
    """

    drafting: Drafting
    source: str = NETWORK
    lantern: Lantern | None = None


_WINDOW = Drafting.of({"method": "eagle2", **drafter_defaults(JACOBI, "cpu")})
_CHAIN = _WINDOW.replace(depth=16, width=1, nodes=16)
_LONG = _WINDOW.replace(depth=42, width=5, nodes=64)
_PRUNED = Drafting("eagle2", depth=8, width=3, nodes=8, expand_above=0.6, keep_above=0.05)


def _of_policies() -> dict[str, Preset]:
    """Every method in the table of policies, with its defaults; plain decoding first."""
    methods = sorted(POLICIES, key=lambda name: name != PLAIN)
    return {name: Preset(Drafting(name), NETWORK if POLICIES[name].needs_drafter else "") for name in methods}


PRESETS = {
    **_of_policies(),
    "eagle2-top-k": Preset(Drafting("eagle2", proposal="top-k")),
    "eagle2-pruned": Preset(_PRUNED),
    "adt-tree-vertical": Preset(Drafting("adt-tree", init="vertical")),
    "adt-tree-random": Preset(Drafting("adt-tree", init="random")),
    "adt-tree-top-k": Preset(Drafting("adt-tree", proposal="top-k")),
    "jacobi-chain": Preset(_CHAIN, JACOBI),
    "jacobi": Preset(_WINDOW, JACOBI),
    "jacobi-64": Preset(_LONG, JACOBI),
    "merged-chain": Preset(_CHAIN, NETWORK + WITH_WINDOW),
    "merged": Preset(_WINDOW, NETWORK + WITH_WINDOW),
    "merged-64": Preset(_LONG, NETWORK + WITH_WINDOW),
    "auto-jacobi": Preset(Drafting("auto"), JACOBI),
}
"""What a benchmark can compare; each but the first also with ``+lantern`` behind its name."""
COMPARED = "eagle2,adt-tree,jacobi,merged,auto,adt-tree+lantern,merged+lantern"
COMPARED_WITHOUT_NETWORK = "jacobi-chain,jacobi,auto-jacobi,jacobi+lantern"
"""What is set against plain decoding unless told otherwise, with a drafter network and without one."""


def drafters_by_name(drafter: Drafter | None) -> dict[str, Drafter]:
    """What can draft, by source: drafters without files, and the network of ``drafter`` without and with a window."""
    drafters = {name: make() for name, make in DRAFTERS.items()}
    network = without_window(drafter) if drafter is not None else None
    if network is not None:
        drafters |= {NETWORK: network, NETWORK + WITH_WINDOW: with_window(network)}
    return drafters


@dataclass(frozen=True)
class Benchmark:
    """What is compared.

    recipe: of all methods, but for their drafting; its LANTERN is that of the methods that end in ``+lantern``, and its
    drafter the network of the methods that need one. metrics: what is measured of every picture, by a name that goes
    into the settings. known: what the names of methods stand for.
    """

    prompts: list[str]
    methods: list[str]
    recipe: Recipe
    metrics: dict[str, quality.ImageMetric] = field(default_factory=dict)
    known: dict[str, Preset] = field(default_factory=lambda: _of_policies() | PRESETS)

    def __post_init__(self) -> None:
        for name in self.methods:
            if name.removesuffix(RELAXED) not in self.known or name == PLAIN + RELAXED:
                raise AdtError(
                    f"`methods`: {name!r} is unknown; choose from {', '.join(self.known)} "
                    f"(all except the first also with {RELAXED} at the end)."
                )

    @property
    def presets(self) -> dict[str, Preset]:
        """What every method's name stands for; plain decoding first, since everything is measured against it."""
        presets = {name: self.known[name.removesuffix(RELAXED)] for name in (PLAIN, *self.methods)}
        lantern = self.recipe.lantern
        return {
            name: preset._replace(lantern=lantern) if name.endswith(RELAXED) else preset
            for name, preset in presets.items()
        }

    def files(self, folder: Path) -> list[Path]:
        """What is written into the benchmark's folder; of pictures, those that are there."""
        pictures = (path for method in self.presets for path in (folder / _pictures(method)).glob("*.png"))
        return [*(folder / name for name in (RUNS, *report.FILES)), *pictures]

    def jobs(self, target: Target, drafter: Drafter | None) -> dict[str, Job]:
        """How every method makes its images. AdtError if a method needs a network and ``drafter`` has none."""
        drafters, jobs = drafters_by_name(drafter), {}
        network = (self.recipe.drafter or JACOBI).removesuffix(WITH_WINDOW)
        for name, (drafting, source, lantern) in self.presets.items():
            if source and source not in drafters:
                needs = f"the method {name!r} needs a drafter network"
                raise AdtError(f"`drafter`: {needs}; choose one, or remove the method.")
            path = source.replace(NETWORK, network) or None
            recipe = replace(self.recipe, drafting=drafting, lantern=lantern, drafter=path)
            jobs[name] = Job(target, recipe, drafters.get(source))
        return jobs

    def settings(self, target: Target) -> dict:
        """Everything that the figures depend on. Runs with other settings are never mixed with these."""
        decoder, shared = target.decoder, Job(target, self.recipe).loaded.sections()
        cpu = platform.processor() or platform.machine()
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
            "device": torch.cuda.get_device_name() if decoder.embedding.is_cuda else cpu,
            "threads": torch.get_num_threads(),
            **{name: shared[name] for name in ("sampling", "lantern", "dtype", "weights", "exact")},
        }


def _commit() -> str | None:
    """The commit of this pack, if it is a git checkout itself, and not only lies in one."""
    pack = Path(__file__).parents[2]
    if not (pack / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "-C", str(pack), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _pictures(method: str) -> str:
    """Where a method's pictures lie, in the benchmark's folder."""
    return f"images/{method.replace(':', '-')}"


Measured = dict[str, tuple[dict, bytes | None]]
"""What methods made of a prompt: the figures of each, and its picture, a PNG. Plain decoding comes first; a method that
wrote its tokens has no picture."""


class BenchmarkWorker:
    """A benchmark's models in memory; measures prompts. facts: the settings that the figures depend on."""

    def __init__(self, benchmark: Benchmark, jobs: dict[str, Job], check: Check | None = None):
        self._prompts, self._jobs = benchmark.prompts, jobs
        self._check, self._warm = check, False
        self.facts = benchmark.settings(jobs[PLAIN].target)

    def __call__(self, number: int) -> Iterator[tuple[int, Measured]]:
        """Decode the prompt of this number by all methods, in an order that the number fixes."""
        if not self._warm:  # first calls are slow
            for job in self._jobs.values():
                warm_up(new_decoding(job, self._prompts[:1], check=self._check), WARM_UP)
        self._warm, prompt = True, self._prompts[number]
        rng = np.random.Generator(np.random.Philox(key=np.array([number, 1], dtype=np.uint64)))
        order = map(str, rng.permutation(list(self._jobs)))
        decodings = {name: decode(new_decoding(self._jobs[name], [prompt], check=self._check)) for name in order}
        plain, measured = decodings[PLAIN].grid_codes(), Measured()
        for name, job in self._jobs.items():
            decoding, png = decodings[name], None
            codes, trace = decoding.grid_codes(), decoding.trace
            agreement = (codes == plain).double().mean().item()
            if name == PLAIN or agreement < 1:
                settings = job.settings(prompt, 0, conditions(decoding, 0)) | {"benchmark_method": name}
                png = to_png(job.pixels(codes, self._check)[0], settings)
            figures = {**trace.report(), "agreement": agreement, "acceptance": trace.acceptance_map()}
            measured[name] = figures, png
        yield number, measured


def load(benchmark: Benchmark, device: str) -> BenchmarkWorker:
    """The models of a benchmark. given: what its recipe was made of. Raises AdtError for files and prompts that don't
    fit."""
    target = open_target(benchmark.recipe.loading, choose_device(device))
    network = any(preset.source.startswith(NETWORK) for preset in benchmark.presets.values())
    drafter = load_drafter(benchmark.recipe.drafter or JACOBI, target) if network else None
    jobs = benchmark.jobs(target, drafter)
    jobs[PLAIN].check(benchmark.prompts)
    return BenchmarkWorker(benchmark, jobs)


def measure(benchmark: Benchmark, jobs: dict[str, Job], folder: Path, check: Check | None = None) -> Iterator[dict]:
    """Run what is missing in ``folder``, and yield every prompt's record, finished ones included.

    jobs: what :meth:`Benchmark.jobs` gives. A record has ``prompt``, ``text`` and ``runs``: for each method its report,
    with ``agreement`` (share of tokens equal to plain decoding's), ``acceptance`` (the acceptance map), ``picture``
    (its path in ``folder``) and ``quality`` (what the metrics gave). check: called often; may raise to cancel.
    """
    engine = BenchmarkWorker(benchmark, jobs, check)
    return collect(benchmark, engine.facts, folder, lambda numbers: chain.from_iterable(map(engine, numbers)))


def collect(
    benchmark: Benchmark, settings: dict, folder: Path, mapped: Callable[[list[int]], Iterable[tuple[int, Measured]]]
) -> Iterator[dict]:
    """The same, where ``mapped`` measures the prompts whose numbers it is given, in any order."""
    done = open_records(folder, settings)
    yield from done
    missing = set(range(len(benchmark.prompts))) - {record["prompt"] for record in done}
    for number, measured in mapped(sorted(missing)):
        yield _save(benchmark, number, measured, folder)


def _save(benchmark: Benchmark, number: int, measured: Measured, folder: Path) -> dict:
    """Write the pictures of a prompt and score them, then its record."""
    prompt, runs = benchmark.prompts[number], {}
    plain: dict = {}
    for name, (figures, png) in measured.items():
        shown = plain
        if png is not None:
            path = f"{_pictures(name)}/{number + 1:04}.png"
            write_in(folder, path, png)
            with open_image(BytesIO(png)) as picture:
                by_metric = [metric(picture, prompt) for metric in benchmark.metrics.values()]
            scores = {column: score for columns in by_metric for column, score in columns.items()}
            shown = {"picture": path, "quality": scores}
        plain = plain or shown
        runs[name] = {**figures, **shown}
    record = {"prompt": number, "text": prompt, "runs": runs}
    append(folder, record)
    return record


def _alike(settings: dict, others: list[dict]) -> dict:
    """The settings of all machines that measure. AdtError if they differ."""
    pairs = [(name, value, other[name]) for other in others for name, value in settings.items()]
    unlike = [f"{name} ({here}, {there})" for name, here, there in pairs if here != there]
    if unlike:
        raise AdtError(
            f"`ray_address`: the machines differ in {', '.join(unlike)}; use identical machines for one benchmark."
        )
    return settings


def plan(order: BenchmarkArgs, engines: WorkerArgs, given: Mapping[str, Any], device: str) -> Benchmark:
    """The benchmark that is asked for, without its metrics. Raises AdtError for what makes no sense."""
    distributed.check_args(engines, order.prompts)
    recipe = complete(given, device)
    recipe = replace(recipe, lantern=recipe.lantern or Lantern.of(given))
    methods = order.methods or (COMPARED if recipe.drafter != JACOBI else COMPARED_WITHOUT_NETWORK)
    prompts = read_prompts(BUNDLED_CAPTIONS if order.prompts == BUNDLED else order.prompts, order.caption)
    prompts = sample(prompts, order.count, order.sample_seed) if order.count else prompts
    return Benchmark(prompts, methods.split(","), recipe)


def run(order: BenchmarkArgs, scores: QualityArgs, engines: WorkerArgs, given: Mapping[str, Any], device: str) -> str:
    """What the command does: measure, write the results, and say where they are. Raises AdtError."""
    benchmark, folder = plan(order, engines, given, device), order.output
    weights = {name: getattr(scores, name) for name in scores.fields()}
    read = models_of(benchmark.recipe.loading.model, benchmark.recipe.drafter or JACOBI)
    read += [*named(order, "prompts"), *named(scores, *weights)]
    read += [(option, file) for option, path in read if path.is_dir() for file in path.rglob("*")]
    check_outputs([("output", path) for path in benchmark.files(folder)], read)  # before the model is loaded
    scoring = choose_device(device if engines.ray_address is None else "auto")
    metrics = quality.choose(**weights, count=len(benchmark.prompts), device=scoring)
    count, build = len(benchmark.prompts), partial(load, benchmark, device)
    benchmark = replace(benchmark, metrics=metrics.pictures)  # here alone: pictures are scored where they are kept
    with distributed.start_workers(build, engines, device, count) as ((first, *others), mapped):
        settings = _alike(first, others) | {"metrics": list(metrics.pictures)}
        settings |= {"workers": engines.workers} if engines.uses_ray else {}
        running = collect(benchmark, settings, folder, mapped)
        records = list(tqdm(running, total=count, unit=" prompts", leave=False))
    records.sort(key=lambda record: record["prompt"])
    pictures = {name: [folder / record["runs"][name]["picture"] for record in records] for name in benchmark.presets}
    sets = metrics.sets(pictures) if metrics.sets else {}
    table, paths = report.write(records, settings, folder, sets, metrics.note)
    plots = any(path.suffix == ".png" for path in paths)
    remedy = "" if plots else f"\nThe plots need matplotlib: {pip_install('matplotlib')}, then run this again."
    return table + "\n" + ", ".join(map(str, paths)) + remedy
