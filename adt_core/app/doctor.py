"""What this machine makes of a model: a page for whoever waits, and for whoever is asked for help.

What no document can know is measured (:mod:`.examination`). The page names no path and no user.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import nn

from ..drafters import JACOBI
from ..engine import graphs
from ..engine.room import free_bytes
from ..models.exact import HALF, near_on
from ..models.kernels import said_of_products
from ..models.target import suffixed
from ..policies import PLAIN
from ..policies.auto import SIZES
from ..version import VERSION
from .checkpoints import find_published, load_drafter
from .examination import PROMPTS, Examination, Subject
from .loading import choose_device, complete, open_target


def run(given: Mapping[str, Any], device: str) -> str:
    """Load what is asked for, and examine it. Raises AdtError where it can't be loaded."""
    recipe, place = complete(given, device), choose_device(device)
    target = open_target(recipe.loading, place)
    recipe = complete(given, device, target.published)
    rows = [target.encode_prompt(suffixed(prompt, recipe.suffix)) for prompt in PROMPTS]
    return examine(Subject(target, recipe.sampling, load_drafter(recipe.drafter or JACOBI, target), rows))


def examine(subject: Subject) -> str:
    """The page about a loaded model and its drafter."""
    examined = Examination(subject)
    parts = {
        "Machine": [_machine(subject)],
        "Model": _model(examined),
        "Plain decoding": _plain(examined),
        "What drafts cost": _costs(examined),
        "Methods": _methods(examined),
        "The same image": _identity(examined),
        "What would make it faster": [f"- {line}" for line in _advice(examined)] or ["Nothing comes to mind."],
        "To paste into a report": ["```", *_block(examined), "```"],
    }
    title = f"ADT-Tree {VERSION}: what this machine makes of {subject.target.name}"
    return "\n\n".join([title, *("\n".join([f"## {name}", *lines]) for name, lines in parts.items() if lines)])


def _machine(subject: Subject) -> str:
    device = subject.device
    torch_is = f"PyTorch {torch.__version__}"
    if device.type == "cpu":
        memory = f"{psutil.virtual_memory().total / 2**30:.0f} GB of memory"
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} CPU with {capability}, {os.cpu_count()} cores, {memory}; {torch_is}."
    properties, (major, minor) = torch.cuda.get_device_properties(device), torch.cuda.get_device_capability(device)
    memory = f"{properties.total_memory / 2**30:.0f} GB of memory, {free_bytes(device) / 2**30:.1f} free"
    return f"{properties.name}, capability {major}.{minor}, {memory}; {torch_is}, CUDA {torch.version.cuda}."


def _model(examined: Examination) -> list[str]:
    subject, target, decoder = examined.subject, examined.subject.target, examined.subject.target.decoder
    config, room = decoder.config, subject.decoding(subject.ways()[PLAIN]).memory_required()
    stored = f", weights in {decoder.weights}" if decoder.weights else ""
    dtype = str(decoder.dtype).removeprefix("torch.")
    lines = [
        f"{target.family}, {config.num_layers} layers of {config.hidden_size}, {dtype}{stored}: "
        f"{_size(decoder) / 2**30:.2f} GB, and {room / 2**30:.2f} GB for an image of {target.length} tokens.",
        "Drafter: " + ("a network." if subject.network else "no network, the window alone."),
    ]
    if decoder.tile:
        has_far = examined.exact.trust is None or examined.exact.trust.far
        near = near_on(subject.device, decoder.dtype, config.head_dim) if has_far else None
        far = "all keys are added in float64" if near is None else f"keys beyond {near} go through a fast kernel"
        lines.append(f"Exact mode: {decoder.tile} rows a product; in attention, {far}.")
    elif decoder.dtype in HALF:
        lines.append("The exact mode is off: drafting may change the image.")
    if subject.device.type == "cuda":
        why = graphs.why_off(decoder)
        lines.append(f"Rounds are launched one by one: {why}." if why else "Rounds are replayed as CUDA graphs.")
    return lines


def _plain(examined: Examination) -> list[str]:
    plain, decoder = examined.plain, examined.subject.target.decoder
    read = _size(decoder) - decoder.embedding.numel() * decoder.embedding.element_size()
    rate = read / plain.step
    return [
        f"A step takes {1000 * plain.step:.3g} ms. It reads {read / 2**30:.2f} GB of weights: {rate / 2**30:.3g} GB a "
        f"second, {rate / examined.rate:.0%} of what this device copies."
    ]


def _costs(examined: Examination) -> list[str]:
    profile, sizes = examined.profile, (0, *SIZES)
    if profile is None:
        return []
    rows = [f"| {name} | " + " | ".join(f"{profile.of(name, n):.2f}" for n in sizes) + " |" for name in profile.costs]
    guess = ["They were not measured here: this is a guess."] if profile.name.startswith("built in") else []
    return [
        "In plain steps, by the number of drafts that a round checks:",
        "",
        "| source | " + " | ".join(map(str, sizes)) + " |",
        "|---" * (len(sizes) + 1) + "|",
        *rows,
        *guess,
    ]


def _methods(examined: Examination) -> list[str]:
    lines = ["| method | tokens a pass | times plain | drafting | alone | beside another prompt |", "|---" * 6 + "|"]
    on_gpu = examined.subject.device.type != "cpu"
    for name, (draw, _) in examined.draws.items():
        alone, beside = ("the same" if same else "DIFFERS" for same in examined.same(name))
        times = f"{draw.pace / examined.plain.pace:.2f}"
        drafting = f"launches: {draw.launches}, waits: {draw.waits}" if on_gpu else f"{draw.drafting:.0%}"
        lines.append(f"| {name} | {draw.tokens:.2f} | {times} | {drafting} | {alone} | {beside} |")
    if examined.left_out:
        lines.append(f"Left out for want of time: {', '.join(examined.left_out)}.")
    count = int((examined.plain.codes >= 0).sum())
    return [*lines, f"Over the first {count} tokens of one image, which say little of a whole one."]


def _identity(examined: Examination) -> list[str]:
    differing = [name for name in examined.draws if not all(examined.same(name))]
    lines = []
    if examined.exact.differing:
        lines.append(
            f"Tokens that are read {' or '.join(examined.exact.differing)} are not read as they are alone, to the last "
            f"bit. {examined.exact.remark} Please report it."
        )
    if not differing:
        tried = " that was tried" if examined.left_out else ""
        return [*lines, f"Every method{tried} draws the tokens of plain decoding."]
    is_exact = examined.subject.target.decoder.tile > 0
    reason = "Please report it" if is_exact else "float32 has no exact mode, so a near tie may fall otherwise"
    return [*lines, f"{', '.join(differing)}: other tokens than plain decoding's. {reason}."]


def _advice(examined: Examination) -> list[str]:
    subject, decoder, advice = examined.subject, examined.subject.target.decoder, list[str]()
    on_gpu = subject.device.type == "cuda"
    if on_gpu and decoder.dtype == torch.float32:
        advice.append("`dtype` bfloat16 halves what is read at every step.")
    if on_gpu and not decoder.weights and _size(decoder) > 2**31:
        advice.append("`weights` int8 halve what is read at every step, and change the model slightly.")
    if not on_gpu and decoder.dtype != torch.float32 and decoder.weights is None:
        advice.append("On a CPU `dtype` float32 is usually faster, if its memory is there.")
    if subject.network is None:
        known = find_published(examined.subject.target.name)
        trained = f"{known.drafter.repository} was trained for this model" if known and known.drafter else ""
        advice.append(f"A drafter network: {trained or '`train-drafter` makes one'}.")
    if on_gpu and graphs.why_off(decoder):
        advice.append("CUDA graphs, which are off here: a newer driver or PyTorch may help.")
    if "auto" in examined.draws:
        advice.append(_what_auto_does(examined))
    return advice


def _what_auto_does(examined: Examination) -> str:
    pace = examined.draws["auto"][0].pace / examined.plain.pace
    best = max(examined.draws, key=lambda name: examined.draws[name][0].pace)
    return f"'auto' drew these tokens {pace:.2f} times as fast as plain decoding; the fastest was {best}."


def _block(examined: Examination) -> list[str]:
    decoder, config = examined.subject.target.decoder, examined.subject.target.decoder.config
    same = {name: "/".join("same" if part else "differs" for part in examined.same(name)) for name in examined.draws}
    plain, differing = examined.plain, examined.exact.differing
    return [
        f"ADT-Tree {VERSION}, Python {platform.python_version()}, {platform.system()}; {_machine(examined.subject)}",
        f"{examined.subject.target.family} {config.num_layers}x{config.hidden_size}, heads {config.num_heads}/"
        f"{config.num_kv_heads} of {config.head_dim}, {decoder.dtype}, weights {decoder.weights}, tile {decoder.tile}",
        f"plain {1000 * plain.step:.3g} ms, copies {examined.rate / 2**30:.3g} GB/s; took {examined.seconds:.0f} s",
        *(
            f"{name}: {draw.tokens:.2f} tokens, {1000 * draw.step:.3g} ms, {same[name]}"
            for name, (draw, _) in examined.draws.items()
        ),
        f"differences: {', '.join(differing) or 'none'}; graphs: {graphs.why_off(decoder) or 'as usual'}; "
        f"products: {', '.join(said_of_products()) or 'as usual'}",
    ]


def _size(module: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in module.parameters())
