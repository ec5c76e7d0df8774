"""What this machine makes of a model: a page for whoever waits, and for whoever is asked for help.

What no document can know is measured here, in two minutes at most: what a plain step takes, what drafts add to it, and
whether every method draws the tokens of plain decoding. The page names no path and no user.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from statistics import mean, median
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..drafters import JACOBI, Drafter, usual_options, without_window
from ..drafters.jacobi import JacobiDrafter
from ..engine import graphs
from ..engine.decoding import Decoding
from ..engine.room import free_bytes
from ..errors import Check
from ..models.target import Target
from ..policies import PLAIN, CostProfile, Drafting
from ..version import VERSION
from .checkpoints import find_published, load_drafter
from .jobs import Job
from .loading import choose_device, complete, open_target

TOKENS = 64
"""That every method draws."""
PATIENCE = 90.0
"""Seconds after which no further method is begun."""
SLOW_STEP = 0.3
"""Seconds of a plain step beyond which the costs of drafts are not measured here: that takes some hundred steps."""
PROMPT = "a photo of a cat"
BESIDE = "a photo of a big brown dog that lies on green grass beside a wooden fence, in the light of the evening sun"
SIZES = (0, 4, 8, 16, 32, 64)
"""Numbers of drafts whose costs are shown."""


def run(given: Mapping[str, Any], device: str) -> str:
    """Load what is asked for, and examine it. Raises AdtError where it can't be loaded."""
    recipe, place = complete(given, device), choose_device(device)
    target = open_target(recipe.loading, place)
    recipe = complete(given, device, target.published)
    return examine(Job(target, recipe, load_drafter(recipe.drafter or JACOBI, target)))


def examine(job: Job, check: Check | None = None) -> str:
    """The page about a loaded model and its drafter. check: called often; may raise to cancel."""
    return _page(_Visit(replace(job, recipe=replace(job.recipe, lantern=None, kept=(), profile=None)), check))


def memory_required(job: Job, device: torch.device | None = None) -> int:
    """Bytes that the most demanding of the methods needs beside the weights. device: where it will run."""
    return max(tried.decoding([PROMPT, BESIDE]).memory_required(device) for tried in methods(job).values())


# ---- what is measured ------------------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """What drawing the first tokens of images by a method has shown.

    codes: [B, n]. step: median seconds of a round. tokens: that a round brought an image, on average. drafting: the
    drafter's share of the time, where the host can tell. launches, waits: operations of a round that the host launches,
    and for whose results it waits. profile: what was believed of costs.
    """

    codes: Tensor
    step: float
    tokens: float
    drafting: float
    launches: float
    waits: float
    profile: CostProfile | None

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.tokens / self.step


def methods(job: Job) -> dict[str, Job]:
    """What is tried, by its name, plain decoding first."""
    kind = job.target.decoder.embedding.device.type

    def with_drafter(drafter: Drafter | None, method: str, **options: Any) -> Job:
        drafting = Drafting.of({**(usual_options(drafter, kind) if drafter else {}), **options, "method": method})
        return replace(job, recipe=replace(job.recipe, drafting=drafting), drafter=drafter)

    network = network_of(job)
    tried = {PLAIN: with_drafter(None, PLAIN), "auto": with_drafter(job.drafter or JacobiDrafter(), "auto")}
    if network is not None:
        tried["adt-tree"] = with_drafter(network, "adt-tree")
    return {**tried, "jacobi, a chain": with_drafter(JacobiDrafter(), "eagle2", depth=16, width=1, nodes=16)}


def network_of(job: Job) -> Drafter | None:
    """The network that drafts, without a window."""
    return without_window(job.drafter) if job.drafter is not None else None


class _Visit:
    """Everything that is measured of a job, in the order in which it is.

    draws: by method, alone and beside a longer prompt. left_out: methods for which there was no time. differences: of
    :mod:`..engine.exactness`. rate: bytes a second, at which this device copies.
    """

    def __init__(self, job: Job, check: Check | None):
        self.job, self.target, self._check = job, job.target, check
        self._began = time.monotonic()
        self.draws: dict[str, tuple[Draw, Draw]] = {}
        self.left_out: list[str] = []
        self.rate = copy_rate(self.target.decoder.embedding.device)
        self.jobs = methods(job)
        for name, tried in self.jobs.items():
            if self.draws and time.monotonic() - self._began > PATIENCE:
                self.left_out.append(name)
                continue
            if name == "auto" and self.plain.step <= SLOW_STEP:
                self._decoding(tried, [PROMPT]).learn_costs()
            self.draws[name] = self._draw(tried, [PROMPT]), self._draw(tried, [PROMPT, BESIDE])
        self.differences = self._decoding(self.jobs["auto"], [PROMPT]).differences()
        self.seconds = time.monotonic() - self._began

    @property
    def plain(self) -> Draw:
        return self.draws[PLAIN][0]

    @property
    def profile(self) -> CostProfile | None:
        return self.draws["auto"][0].profile if "auto" in self.draws else None

    def same(self, name: str) -> tuple[bool, bool]:
        """Are the tokens of a method those of plain decoding, alone and beside another prompt?"""
        alone, beside = (draw.codes[0] for draw in self.draws[name])
        n = min(len(alone), len(beside), self.plain.codes.shape[1])
        return alone[:n].equal(self.plain.codes[0, :n]), beside[:n].equal(self.plain.codes[0, :n])

    def _decoding(self, job: Job, prompts: Sequence[str]) -> Decoding:
        return job.decoding(prompts, check=self._check)

    def _draw(self, job: Job, prompts: Sequence[str]) -> Draw:
        """Draw twice: the first time, libraries prepare themselves."""
        for _ in range(2):
            decoding, ledger = self._decoding(job, prompts), _Ledger()
            count = min(TOKENS, self.target.length)
            with closing(iter(decoding)) as rounds:
                for number, _ in enumerate(rounds):
                    if (decoding.codes[:, count - 1] >= 0).all():
                        break
                    if number == 3:
                        with ledger:
                            next(rounds, None)
        measured = [round for round in decoding.trace.rounds[1:] if not round.prepared] or decoding.trace.rounds
        shares = [share for round in measured for share in round.images]
        return Draw(
            codes=decoding.codes[:, :count].clone(),
            step=median(round.seconds for round in measured),
            tokens=mean(share.accepted + 1 for share in shares),
            drafting=sum(round.drafting for round in measured) / sum(round.seconds for round in measured),
            launches=ledger.launches,
            waits=ledger.waits,
            profile=decoding.profile,
        )


class _Ledger(TorchDispatchMode):
    """Counts what the host launches on a device, and how often it waits for it."""

    WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select"}
    NO_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "lift_fresh", "_unsafe_view"}

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns)
        self.launches += not is_view and name not in self.NO_WORK
        to_host = name in ("_to_copy", "copy_") and isinstance(result, Tensor) and result.device.type == "cpu"
        self.waits += (
            name in self.WAITS
            or to_host
            and any(isinstance(value, Tensor) and value.device.type != "cpu" for value in args)
        )
        return result


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a device reads and writes when it copies, at best of a few."""
    source = torch.ones(2**26 if device.type == "cpu" else 2**28, dtype=torch.uint8, device=device)
    copied, best = torch.empty_like(source), 0.0
    for _ in range(5):
        _wait(device)
        started = time.perf_counter()
        copied.copy_(source)
        _wait(device)
        best = max(best, 2 * source.numel() / (time.perf_counter() - started))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- what the page says ----------------------------------------------------------------------------------------------


def _page(visit: _Visit) -> str:
    parts = {
        "Machine": [_machine(visit.target)],
        "Model": _model(visit.job),
        "Plain decoding": _plain(visit),
        "What drafts cost": _costs(visit),
        "Methods": _methods(visit),
        "The same image": _identity(visit),
        "What would make it faster": [f"- {line}" for line in _advice(visit)] or ["Nothing comes to mind."],
        "To paste into a report": ["```", *_block(visit), "```"],
    }
    head = f"ADT-Tree {VERSION}: what this machine makes of {visit.target.name}"
    return "\n\n".join([head, *("\n".join([f"## {title}", *lines]) for title, lines in parts.items() if lines)])


def _machine(target: Target) -> str:
    device = target.decoder.embedding.device
    torch_is = f"PyTorch {torch.__version__}"
    if device.type == "cpu":
        memory = f"{psutil.virtual_memory().total / 2**30:.0f} GB of memory"
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} CPU with {capability}, {os.cpu_count()} cores, {memory}; {torch_is}."
    properties, (major, minor) = torch.cuda.get_device_properties(device), torch.cuda.get_device_capability(device)
    memory = f"{properties.total_memory / 2**30:.0f} GB of memory, {free_bytes(device) / 2**30:.1f} free"
    return f"{properties.name}, capability {major}.{minor}, {memory}; {torch_is}, CUDA {torch.version.cuda}."


def _model(job: Job) -> list[str]:
    target, decoder = job.target, job.target.decoder
    config, room = decoder.config, job.decoding([PROMPT]).memory_required()
    stored = f", weights in {decoder.weights}" if decoder.weights else ""
    dtype = str(decoder.dtype).removeprefix("torch.")
    lines = [
        f"{target.family}, {config.num_layers} layers of {config.hidden_size}, {dtype}{stored}: "
        f"{_size(decoder) / 2**30:.2f} GB, and {room / 2**30:.2f} GB for an image of {target.length} tokens.",
        "Drafter: " + ("a network." if network_of(job) else "no network, the window alone."),
    ]
    if decoder.tile:
        near = job.decoding([PROMPT]).near
        far = "all keys are added in float64" if near is None else f"keys beyond {near} go through a fast kernel"
        lines.append(f"Exact mode: {decoder.tile} rows a product; in attention, {far}.")
    elif decoder.dtype in (torch.bfloat16, torch.float16):
        lines.append("The exact mode is off: drafting may change the image.")
    if decoder.embedding.device.type == "cuda":
        why = graphs.refused[0] if graphs.refused else f"{graphs.SWITCH} is 0" if graphs.switched_off() else ""
        lines.append(f"Rounds are launched one by one: {why}." if why else "Rounds are replayed as CUDA graphs.")
    return lines


def _plain(visit: _Visit) -> list[str]:
    plain, decoder = visit.plain, visit.target.decoder
    read = _size(decoder) - decoder.embedding.numel() * decoder.embedding.element_size()
    rate = read / plain.step
    return [
        f"A step takes {1000 * plain.step:.3g} ms. It reads {read / 2**30:.2f} GB of weights: {rate / 2**30:.3g} GB a "
        f"second, {rate / visit.rate:.0%} of what this device copies."
    ]


def _costs(visit: _Visit) -> list[str]:
    profile = visit.profile
    if profile is None:
        return []
    rows = [f"| {name} | " + " | ".join(f"{profile.of(name, n):.2f}" for n in SIZES) + " |" for name in profile.costs]
    guess = ["They were not measured here: this is a guess."] if profile.name.startswith("built in") else []
    return [
        "In plain steps, by the number of drafts that a round checks:",
        "",
        "| source | " + " | ".join(map(str, SIZES)) + " |",
        "|---" * (len(SIZES) + 1) + "|",
        *rows,
        *guess,
    ]


def _methods(visit: _Visit) -> list[str]:
    lines = ["| method | tokens a pass | times plain | drafting | alone | beside another prompt |", "|---" * 6 + "|"]
    on_gpu = visit.target.decoder.embedding.device.type != "cpu"
    for name, (draw, _) in visit.draws.items():
        alone, beside = ("the same" if same else "DIFFERS" for same in visit.same(name))
        times = f"{draw.pace / visit.plain.pace:.2f}"
        drafting = f"{draw.launches} launches, {draw.waits} waits" if on_gpu else f"{draw.drafting:.0%}"
        lines.append(f"| {name} | {draw.tokens:.2f} | {times} | {drafting} | {alone} | {beside} |")
    if visit.left_out:
        lines.append(f"Left out for want of time: {', '.join(visit.left_out)}.")
    count = visit.plain.codes.shape[1]
    return [*lines, f"Over the first {count} tokens of one image, which say little of a whole one."]


def _identity(visit: _Visit) -> list[str]:
    differing = [name for name in visit.draws if not all(visit.same(name))]
    if visit.differences:
        return [
            f"Tokens that are read {' or '.join(visit.differences)} are not read as they are alone, to the last bit. "
            "Drafted images may differ from plain ones here. Please report it."
        ]
    if not differing:
        return ["Every method draws the tokens of plain decoding."]
    near_tie = "float32 has no exact mode, so a near tie may fall otherwise" if not visit.target.decoder.tile else ""
    return [f"{', '.join(differing)}: other tokens than plain decoding's. {near_tie or 'Please report it'}."]


def _advice(visit: _Visit) -> list[str]:
    decoder, job = visit.target.decoder, visit.job
    on_gpu, advice = decoder.embedding.device.type == "cuda", []
    if on_gpu and decoder.dtype == torch.float32:
        advice.append("`dtype` bfloat16 halves what is read at every step.")
    if on_gpu and not decoder.weights and _size(decoder) > 2**31:
        advice.append("`weights` int8 halve what is read at every step, and change the model slightly.")
    if not on_gpu and decoder.dtype != torch.float32 and decoder.weights is None:
        advice.append("On a CPU `dtype` float32 is usually faster, if its memory is there.")
    if network_of(job) is None:
        known = find_published(visit.target.name)
        trained = f"{known.drafter.repository} was trained for this model" if known and known.drafter else ""
        advice.append(f"A drafter network: {trained or '`train-drafter` makes one'}.")
    if graphs.refused:
        advice.append("CUDA graphs, which were given up here: a newer driver or PyTorch may help.")
    if "auto" in visit.draws:
        advice.append(_what_auto_does(visit))
    return advice


def _what_auto_does(visit: _Visit) -> str:
    pace = visit.draws["auto"][0].pace / visit.plain.pace
    best = max(visit.draws, key=lambda name: visit.draws[name][0].pace)
    return f"'auto' drew these tokens {pace:.2f} times as fast as plain decoding; the fastest was {best}."


def _block(visit: _Visit) -> list[str]:
    decoder, config = visit.target.decoder, visit.target.decoder.config
    same = {name: "/".join("same" if part else "differs" for part in visit.same(name)) for name in visit.draws}
    return [
        f"ADT-Tree {VERSION}, Python {platform.python_version()}, {platform.system()}; {_machine(visit.target)}",
        f"{visit.target.family} {config.num_layers}x{config.hidden_size}, heads {config.num_heads}/"
        f"{config.num_kv_heads} of {config.head_dim}, {decoder.dtype}, weights {decoder.weights}, tile {decoder.tile}",
        f"plain {1000 * visit.plain.step:.3g} ms, copies {visit.rate / 2**30:.3g} GB/s; visit {visit.seconds:.0f} s",
        *(
            f"{name}: {draw.tokens:.2f} tokens, {1000 * draw.step:.3g} ms, {same[name]}"
            for name, (draw, _) in visit.draws.items()
        ),
        f"differences: {', '.join(visit.differences) or 'none'}; graphs: {', '.join(graphs.refused) or 'as usual'}",
    ]


def _size(module: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in module.parameters())
