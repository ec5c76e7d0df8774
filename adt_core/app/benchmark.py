"""Several methods on the same prompts, side by side: what ``python -m adt_core benchmark`` runs.

Methods take turns on every prompt, in an order drawn anew for each, so that their ratios survive a machine whose speed drifts. A
prompt is written to ``runs.jsonl`` when all its methods are done; an interrupted benchmark goes on with the next one. Pictures are kept in
``images/METHOD``; a method that wrote plain decoding's tokens has plain decoding's picture.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from ..drafters.base import Drafter
from ..drafters.eagle import EagleDrafter
from ..drafters.jacobi import JacobiDrafter
from ..drafters.load import JACOBI, WITH_WINDOW, load_drafter
from ..drafters.merged import MergedDrafter
from ..engine.decoding import Check, Decoding
from ..errors import AdtError
from ..models.target import Target
from ..policies.shape import Drafting
from ..policies.static_trees import STATIC_TREES
from ..rules.sampling import Sampling
from ..rules.verify import Lantern
from ..version import VERSION
from . import distributed, quality, report
from .generation import Result, choose_device, default_drafter, open_target, relaxation
from .images import to_png, write
from .prompts import BUNDLED_CAPTIONS, read_prompts, sample
from .report import PLAIN

RELAXED = "+lantern"
NETWORK = "network"
RUNS = "runs.jsonl"


class Preset(NamedTuple):
    """A method of the benchmark.

    source: what drafts: "network" stands for the drafter that was asked for, "network+jacobi" for both in one tree, "" is none. lantern: its
    acceptance rule; None for the exact one.
    """

    drafting: Drafting
    source: str = NETWORK
    lantern: Lantern | None = None


_WINDOW = JacobiDrafter.default
_CHAIN = replace(_WINDOW, width=1, nodes=16)
_LONG = replace(_WINDOW, depth=42, width=4, nodes=64)
_PRUNED = {"depth": 8, "width": 3, "nodes": 8, "expand_above": 0.6, "keep_above": 0.05}
PRESETS = {
    PLAIN: Preset(Drafting(method=PLAIN), source=""),
    **{f"static:{name}": Preset(Drafting(method=f"static:{name}")) for name in STATIC_TREES},
    "eagle2": Preset(Drafting(method="eagle2")),
    "eagle2-top-k": Preset(Drafting(method="eagle2", proposal="top-k")),
    "eagle2-pruned": Preset(Drafting(method="eagle2", **_PRUNED)),
    "adt-tree": Preset(Drafting()),
    "adt-tree-vertical": Preset(Drafting(init="vertical")),
    "adt-tree-random": Preset(Drafting(init="random")),
    "adt-tree-top-k": Preset(Drafting(proposal="top-k")),
    "jacobi-chain": Preset(_CHAIN, JACOBI),
    "jacobi": Preset(_WINDOW, JACOBI),
    "jacobi-64": Preset(_LONG, JACOBI),
    "merged-chain": Preset(_CHAIN, NETWORK + WITH_WINDOW),
    "merged": Preset(_WINDOW, NETWORK + WITH_WINDOW),
    "merged-64": Preset(_LONG, NETWORK + WITH_WINDOW),
    "auto": Preset(Drafting(method="auto")),
    "auto-jacobi": Preset(Drafting(method="auto"), JACOBI),
}
"""What a benchmark can compare; each but the first also with ``+lantern`` behind its name."""
COMPARED = "eagle2,adt-tree,jacobi,merged,auto,adt-tree+lantern,merged+lantern"
COMPARED_WITHOUT_NETWORK = "jacobi-chain,jacobi,auto-jacobi,jacobi+lantern"
"""What is set against plain decoding unless told otherwise, with a drafter network and without one."""


def sources(network: Drafter | None) -> dict[str, Drafter]:
    """What can draft, by source: the window alone, and with a network what that makes possible."""
    if isinstance(network, MergedDrafter):
        network = network.network  # whether there is a window is the method's to say
    found: dict[str, Drafter] = {JACOBI: JacobiDrafter()}
    if network is not None and not isinstance(network, JacobiDrafter):
        found[NETWORK] = network
    if isinstance(network, EagleDrafter):
        found[NETWORK + WITH_WINDOW] = MergedDrafter(network)
    return found


@dataclass(frozen=True)
class Benchmark:
    """What is compared.

    drafter: of the methods that need a network. lantern: of those that end in ``+lantern``. metrics: what is measured of every
    picture, by a name that goes into the settings. known: what the names stand for.
    """

    prompts: list[str]
    methods: list[str]
    sampling: Sampling
    lantern: Lantern
    drafter: str = "bundled"
    metrics: dict[str, quality.PictureMetric] = field(default_factory=dict)
    known: dict[str, Preset] = field(default_factory=lambda: PRESETS)

    def __post_init__(self) -> None:
        for name in self.methods:
            if name.removesuffix(RELAXED) not in self.known or name == PLAIN + RELAXED:
                raise AdtError(
                    f"--methods: {name!r} is unknown; choose from {', '.join(self.known)}, all but the first also with {RELAXED} behind it."
                )

    @property
    def names(self) -> list[str]:
        """The methods, plain decoding first: everything is measured against it."""
        return [PLAIN, *(name for name in dict.fromkeys(self.methods) if name != PLAIN)]

    @property
    def presets(self) -> dict[str, Preset]:
        """What every name stands for."""
        exact = {name: self.known[name.removesuffix(RELAXED)] for name in self.names}
        return {
            name: preset._replace(lantern=self.lantern) if name.endswith(RELAXED) else preset
            for name, preset in exact.items()
        }

    def drafters(self, target: Target) -> dict[str, Drafter]:
        """What drafts, by source; a network is loaded only if a method needs it."""
        needed = any(preset.source.startswith(NETWORK) for preset in self.presets.values())
        return self.choose(load_drafter(self.drafter, target) if needed else None)

    def choose(self, network: Drafter | None) -> dict[str, Drafter]:
        """The same with a network that is loaded already; None for none. AdtError if a method then goes without."""
        found = sources(network)
        for name, preset in self.presets.items():
            if preset.source and preset.source not in found:
                raise AdtError(
                    f"--drafter: the method {name!r} needs a network; give a drafter that is one, or leave the method out."
                )
        return found

    def start(
        self, name: str, prompt: str, target: Target, drafters: dict[str, Drafter], check: Check | None = None
    ) -> Decoding:
        """A decoding of one prompt by one method."""
        preset = self.presets[name]
        return Decoding(
            target,
            [target.encode_prompt(prompt)],
            sampling=self.sampling,
            drafting=preset.drafting,
            drafter=drafters.get(preset.source),
            lantern=preset.lantern,
            check=check,
        )

    def settings(self, target: Target) -> dict:
        """Everything that the figures hang on; runs of other settings are never mixed with these."""
        decoder = target.decoder
        device = (
            torch.cuda.get_device_name() if decoder.embedding.is_cuda else platform.processor() or platform.machine()
        )
        methods = {
            name: {
                **asdict(preset.drafting),
                "source": preset.source,
                "lantern": preset.lantern and asdict(preset.lantern),
            }
            for name, preset in self.presets.items()
        }
        return {
            "model": target.name,
            "drafter": self.drafter,
            "methods": methods,
            "sampling": asdict(self.sampling),
            "lantern": asdict(self.lantern),
            "metrics": list(self.metrics),
            "prompts": self.prompts,
            "grid": list(target.grid),
            "engine": f"ADT-Tree {VERSION}",
            "commit": _commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": device,
            "threads": torch.get_num_threads(),
            "dtype": str(decoder.dtype).removeprefix("torch."),
        }


def _commit() -> str | None:
    """The commit of this pack, if it lies in a git checkout."""
    try:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def open_runs(folder: Path, settings: dict) -> list[dict]:
    """Finished prompts in ``folder``; begins the file if there is none. AdtError if they were made with other settings."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUNS
    if not path.exists():
        path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        return []
    head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if json.loads(head)["settings"] != settings:
        raise AdtError(
            f"--output: '{folder}' holds a benchmark of other settings; give another folder, or delete {path}."
        )
    whole = [
        line for line in lines if line.endswith("\n")
    ]  # a line that was being written when the power went is done again
    path.write_text("".join([head, *whole]), encoding="utf-8")
    return [json.loads(line) for line in whole]


class Measured(NamedTuple):
    """What the methods made of a prompt: their runs, and by method the PNGs, of plain decoding and of those with other tokens."""

    runs: dict[str, dict]
    pngs: dict[str, bytes]


def measure(
    benchmark: Benchmark,
    settings: dict,
    target: Target,
    drafters: dict[str, Drafter],
    folder: Path,
    check: Check | None = None,
) -> Iterator[dict]:
    """Run what is missing in ``folder``, and yield every prompt's record, finished ones included.

    settings, drafters: what :class:`Benchmark` makes of ``target``. A record has ``prompt``, ``text`` and ``runs``: for each method its
    report, with ``agreement`` (share of tokens equal to plain decoding's), ``acceptance`` (the acceptance map), ``picture`` (its path
    in ``folder``) and ``quality`` (what the metrics gave). check: called often; may raise to cancel.
    """

    def one_by_one(numbers: list[int]) -> Iterator[tuple[int, Measured]]:
        warm_up(benchmark, target, drafters, check)
        for number in numbers:
            yield number, measure_prompt(benchmark, number, target, drafters, check)

    return collect(benchmark, settings, folder, one_by_one)


def collect(
    benchmark: Benchmark, settings: dict, folder: Path, source: Callable[[list[int]], Iterable[tuple[int, Measured]]]
) -> Iterator[dict]:
    """The same with what ``source`` measures of the prompts whose numbers it is given, in any order: finished records come first."""
    done = open_runs(folder, settings)
    yield from done
    missing = sorted(set(range(len(benchmark.prompts))) - {record["prompt"] for record in done})
    for number, measured in source(missing) if missing else ():
        yield _keep(benchmark, number, measured, folder)


def warm_up(benchmark: Benchmark, target: Target, drafters: dict[str, Drafter], check: Check | None = None) -> None:
    """First calls are slow."""
    for name in benchmark.names:
        for _ in islice(benchmark.start(name, benchmark.prompts[0], target, drafters, check), 8):
            pass


def measure_prompt(
    benchmark: Benchmark, number: int, target: Target, drafters: dict[str, Drafter], check: Check | None = None
) -> Measured:
    """Decode a prompt by all methods, in an order that its number fixes."""

    def decode(name: str) -> Result:
        decoding = benchmark.start(name, benchmark.prompts[number], target, drafters, check)
        for _ in decoding:
            pass
        return Result(decoding.grid_codes(), decoding.trace)  # without the caches

    order = np.random.Generator(np.random.Philox(key=np.array([number, 1], dtype=np.uint64))).permutation(
        benchmark.names
    )
    results = {str(name): decode(str(name)) for name in order}
    plain = results[PLAIN].codes
    runs = {
        name: {
            **results[name].trace.report(),
            "agreement": (results[name].codes == plain).double().mean().item(),
            "acceptance": results[name].trace.acceptance_map(),
        }
        for name in benchmark.names
    }
    pngs = {}
    for name in benchmark.names:
        if name == PLAIN or not torch.equal(results[name].codes, plain):
            pixels = target.codec.decode(results[name].codes.to(target.codec.codebook.device), check=check)[0]
            pngs[name] = to_png(pixels, {"prompt": benchmark.prompts[number], "method": name})
    return Measured(runs, pngs)


def _keep(benchmark: Benchmark, number: int, measured: Measured, folder: Path) -> dict:
    """Write the pictures of a prompt and score them, then its record."""
    prompt = benchmark.prompts[number]
    shown = {}
    for name, png in measured.pngs.items():
        path = Path("images") / name.replace(":", "-") / f"{number + 1:04}.png"
        write(folder / path, png)
        picture = Image.open(BytesIO(png))
        scores = {
            column: score for metric in benchmark.metrics.values() for column, score in metric(picture, prompt).items()
        }
        shown[name] = {"picture": path.as_posix(), "quality": scores}
    runs = {name: {**run, **shown.get(name, shown[PLAIN])} for name, run in measured.runs.items()}
    record = {"prompt": number, "text": prompt, "runs": runs}
    with (folder / RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


class Engine:
    """A benchmark's models in memory; measures one prompt after another. Raises AdtError for files and prompts that don't fit."""

    def __init__(self, benchmark: Benchmark, options: argparse.Namespace):
        self._benchmark, self.target = benchmark, open_target(options, choose_device(options.device))
        for prompt in benchmark.prompts:
            self.target.encode_prompt(prompt)  # one that is too long should not be found after an hour
        self.drafters, self._warm = benchmark.drafters(self.target), False

    @property
    def settings(self) -> dict:
        return self._benchmark.settings(self.target)

    def __call__(self, number: int) -> Measured:
        if not self._warm:
            warm_up(self._benchmark, self.target, self.drafters)
        self._warm = True
        return measure_prompt(self._benchmark, number, self.target, self.drafters)


@contextmanager
def _measuring(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[tuple[dict, Iterator[dict]]]:
    """The settings of the machines that measure, and the records: from this one, or from engines on Ray."""
    if not distributed.wanted(options):
        engine = Engine(benchmark, options)
        yield engine.settings, measure(benchmark, engine.settings, engine.target, engine.drafters, options.output)
        return
    unscored = replace(benchmark, metrics={})  # pictures are scored where they are kept
    with distributed.engines(partial(Engine, unscored, options), options, len(benchmark.prompts)) as engines:
        settings, *others = engines.ask("settings")
        for other in others:
            unlike = [f"{name} ({settings[name]}, {other[name]})" for name in settings if other[name] != settings[name]]
            if unlike:
                raise AdtError(
                    f"--ray-address: the machines differ in {', '.join(unlike)}; figures of one benchmark come from machines that are alike."
                )
        settings |= {"metrics": list(benchmark.metrics), "workers": options.workers}
        yield settings, collect(benchmark, settings, options.output, engines.map)


def run(options: argparse.Namespace, sampling: dict, lantern: dict, weights: dict) -> str:
    """What the command does: measure, write the results, and say where they are. Raises AdtError for options that make no sense."""
    if options.count is not None and options.count < 1:
        raise AdtError(f"--count is {options.count}; it must be 1 or more.")
    distributed.check(options)
    options.drafter = options.drafter or default_drafter(options.model)
    methods = options.methods or (COMPARED if options.drafter != JACOBI else COMPARED_WITHOUT_NETWORK)
    prompts = read_prompts(BUNDLED_CAPTIONS if options.prompts == "bundled" else options.prompts, options.caption)
    benchmark = Benchmark(
        sample(prompts, options.count, options.sample_seed) if options.count else prompts,
        methods.split(","),
        Sampling(**sampling),
        relaxation(**lantern) or Lantern(lantern["lantern_k"], max_substitution=lantern["max_substitution"]),
        options.drafter,
    )
    device = choose_device(options.device if options.ray_address is None else "auto")
    metrics = quality.choose(**weights, count=len(benchmark.prompts), device=device)
    benchmark = replace(benchmark, metrics=metrics.pictures)
    with _measuring(benchmark, options) as (settings, prompts_done):
        records = list(tqdm(prompts_done, total=len(benchmark.prompts), unit=" prompts", leave=False))
    records.sort(key=lambda record: record["prompt"])
    pictures = {
        name: [options.output / record["runs"][name]["picture"] for record in records] for name in benchmark.names
    }
    table, paths = report.write(
        records, settings, options.output, metrics.sets(pictures) if metrics.sets else {}, metrics.note
    )
    plots = (
        ""
        if any(path.suffix == ".png" for path in paths)
        else "\nThe plots need matplotlib: pip install matplotlib, then run this again."
    )
    return table + "\n" + ", ".join(map(str, paths)) + plots
