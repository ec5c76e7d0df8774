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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from . import quality, report
from .decode import Check, Decoding
from .drafters import Drafter
from .drafters.eagle import EagleDrafter
from .drafters.jacobi import JacobiDrafter
from .drafters.load import JACOBI, WITH_WINDOW, load_drafter
from .drafters.merged import MergedDrafter
from .errors import AdtError
from .generation import Result, choose_device, default_drafter, open_target, relaxation
from .images import save_png, to_uint8
from .lantern import Lantern
from .models.target import Target
from .prompts import BUNDLED_CAPTIONS, read_prompts, sample
from .report import PLAIN
from .sampling import Sampling
from .shape import Drafting
from .static import STATIC_TREES
from .version import VERSION

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
                raise AdtError(f"--methods: {name!r} is unknown; choose from {', '.join(self.known)}, all but the first also with {RELAXED} behind it.")

    @property
    def names(self) -> list[str]:
        """The methods, plain decoding first: everything is measured against it."""
        return [PLAIN, *(name for name in dict.fromkeys(self.methods) if name != PLAIN)]

    @property
    def presets(self) -> dict[str, Preset]:
        """What every name stands for."""
        exact = {name: self.known[name.removesuffix(RELAXED)] for name in self.names}
        return {name: preset._replace(lantern=self.lantern) if name.endswith(RELAXED) else preset for name, preset in exact.items()}

    def drafters(self, target: Target) -> dict[str, Drafter]:
        """What drafts, by source; a network is loaded only if a method needs it."""
        needed = any(preset.source.startswith(NETWORK) for preset in self.presets.values())
        return self.choose(load_drafter(self.drafter, target) if needed else None)

    def choose(self, network: Drafter | None) -> dict[str, Drafter]:
        """The same with a network that is loaded already; None for none. AdtError if a method then goes without."""
        found = sources(network)
        for name, preset in self.presets.items():
            if preset.source and preset.source not in found:
                raise AdtError(f"--drafter: the method {name!r} needs a network; give a drafter that is one, or leave the method out.")
        return found

    def start(self, name: str, prompt: str, target: Target, drafters: dict[str, Drafter], check: Check | None = None) -> Decoding:
        """A decoding of one prompt by one method."""
        preset = self.presets[name]
        return Decoding(target, [target.encode_prompt(prompt)], sampling=self.sampling, drafting=preset.drafting, drafter=drafters.get(preset.source),
                        lantern=preset.lantern, check=check)

    def settings(self, target: Target) -> dict:
        """Everything that the figures hang on; runs of other settings are never mixed with these."""
        decoder = target.decoder
        device = torch.cuda.get_device_name() if decoder.embedding.is_cuda else platform.processor() or platform.machine()
        methods = {name: {**asdict(preset.drafting), "source": preset.source, "lantern": preset.lantern and asdict(preset.lantern)}
                   for name, preset in self.presets.items()}
        return {"model": target.name, "drafter": self.drafter, "methods": methods,
                "sampling": asdict(self.sampling), "lantern": asdict(self.lantern), "metrics": list(self.metrics), "prompts": self.prompts,
                "grid": list(target.grid), "engine": f"ADT-Tree {VERSION}", "commit": _commit(), "torch": torch.__version__,
                "python": platform.python_version(), "device": device, "threads": torch.get_num_threads(), "dtype": str(decoder.dtype).removeprefix("torch.")}


def _commit() -> str | None:
    """The commit of this pack, if it lies in a git checkout."""
    try:
        return subprocess.run(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
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
        raise AdtError(f"--output: '{folder}' holds a benchmark of other settings; give another folder, or delete {path}.")
    whole = [line for line in lines if line.endswith("\n")]  # a line that was being written when the power went is done again
    path.write_text("".join([head, *whole]), encoding="utf-8")
    return [json.loads(line) for line in whole]


def measure(benchmark: Benchmark, settings: dict, target: Target, drafters: dict[str, Drafter], folder: Path, check: Check | None = None) -> Iterator[dict]:
    """Run what is missing in ``folder``, and yield every prompt's record, finished ones included.

    settings, drafters: what :class:`Benchmark` makes of ``target``. A record has ``prompt``, ``text`` and ``runs``: for each method its
    report, with ``agreement`` (share of tokens equal to plain decoding's), ``acceptance`` (the acceptance map), ``picture`` (its path
    in ``folder``) and ``quality`` (what the metrics gave). check: called often; may raise to cancel.
    """
    done = open_runs(folder, settings)
    yield from done
    if len(done) == len(benchmark.prompts):
        return

    def decode(name: str, prompt: str, rounds: int | None = None) -> Result:
        decoding = benchmark.start(name, prompt, target, drafters, check)
        for _ in islice(decoding, rounds):
            pass
        return Result(decoding.grid_codes(), decoding.trace)  # without the caches

    for name in benchmark.names:
        decode(name, benchmark.prompts[0], rounds=8)  # first calls are slow
    for number, prompt in enumerate(benchmark.prompts[len(done) :], start=len(done)):
        order = np.random.Generator(np.random.Philox(key=np.array([number, 1], dtype=np.uint64))).permutation(benchmark.names)
        results = {str(name): decode(str(name), prompt) for name in order}
        plain = results[PLAIN].codes
        shown = {name: _show(benchmark, name, number, results[name].codes, target, folder, check)
                 for name in benchmark.names if name == PLAIN or not torch.equal(results[name].codes, plain)}
        runs = {name: {**results[name].trace.report(), "agreement": (results[name].codes == plain).double().mean().item(),
                       "acceptance": results[name].trace.acceptance_map(), **shown.get(name, shown[PLAIN])} for name in benchmark.names}
        record = {"prompt": number, "text": prompt, "runs": runs}
        with (folder / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        yield record


def _show(benchmark: Benchmark, name: str, number: int, codes: Tensor, target: Target, folder: Path, check: Check | None) -> dict:
    """Write the picture of codes [1, rows, columns]; where it is, and what the metrics say of it."""
    prompt, path = benchmark.prompts[number], Path("images") / name.replace(":", "-") / f"{number + 1:04}.png"
    pixels = target.codec.decode(codes.to(target.codec.codebook.device), check=check)[0]
    save_png(folder / path, pixels, {"prompt": prompt, "method": name})
    picture = Image.fromarray(to_uint8(pixels))
    scores = {column: score for metric in benchmark.metrics.values() for column, score in metric(picture, prompt).items()}
    return {"picture": path.as_posix(), "quality": scores}


def run(options: argparse.Namespace, sampling: dict, lantern: dict, weights: dict) -> str:
    """What the command does: measure, write the results, and say where they are. Raises AdtError for options that make no sense."""
    if options.count is not None and options.count < 1:
        raise AdtError(f"--count is {options.count}; it must be 1 or more.")
    options.drafter = options.drafter or default_drafter(options.model)
    methods = options.methods or (COMPARED if options.drafter != JACOBI else COMPARED_WITHOUT_NETWORK)
    prompts = read_prompts(BUNDLED_CAPTIONS if options.prompts == "bundled" else options.prompts, options.caption)
    benchmark = Benchmark(sample(prompts, options.count, options.sample_seed) if options.count else prompts, methods.split(","), Sampling(**sampling),
                          relaxation(**lantern) or Lantern(lantern["lantern_k"], max_substitution=lantern["max_substitution"]), options.drafter)
    device = choose_device(options.device)
    metrics = quality.choose(**weights, count=len(benchmark.prompts), device=device)
    benchmark = replace(benchmark, metrics=metrics.pictures)
    target = open_target(options, device)
    for prompt in benchmark.prompts:
        target.encode_prompt(prompt)  # one that is too long should not be found after an hour
    settings = benchmark.settings(target)
    prompts_done = measure(benchmark, settings, target, benchmark.drafters(target), options.output)
    records = list(tqdm(prompts_done, total=len(benchmark.prompts), unit=" prompts", leave=False))
    pictures = {name: [options.output / record["runs"][name]["picture"] for record in records] for name in benchmark.names}
    table, paths = report.write(records, settings, options.output, metrics.sets(pictures) if metrics.sets else {}, metrics.note)
    plots = "" if any(path.suffix == ".png" for path in paths) else "\nThe plots need matplotlib: pip install matplotlib, then run this again."
    return table + "\n" + ", ".join(map(str, paths)) + plots
