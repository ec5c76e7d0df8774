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
from ..engine.device.memory import free_bytes
from ..models.batch_invariance import HALF, near_window
from ..models.kernels import reduced_precision_settings
from ..models.target import suffixed
from ..policies import PLAIN
from ..policies.auto import SIZES
from ..version import VERSION
from .checkpoints import find_published, load_drafter
from .diagnostics import PROMPTS, Diagnostics, DiagnosticSetup
from .loading import choose_device, complete, open_target


def run(given: Mapping[str, Any], device: str) -> str:
    """Load what is asked for, and examine it. Raises AdtError where it can't be loaded."""
    recipe, place = complete(given, device), choose_device(device)
    target = open_target(recipe.loading, place)
    recipe = complete(given, device, target.published)
    rows = [target.encode_prompt(suffixed(prompt, recipe.suffix)) for prompt in PROMPTS]
    return diagnose(DiagnosticSetup(target, recipe.sampling, load_drafter(recipe.drafter or JACOBI, target), rows))


def diagnose(subject: DiagnosticSetup) -> str:
    """The page about a loaded model and its drafter."""
    examined = Diagnostics(subject)
    parts = {
        "Machine": [_machine(subject)],
        "Model": _model(examined),
        "Plain decoding": _plain(examined),
        "Cost of drafts": _costs(examined),
        "Methods": _methods(examined),
        "Same image": _identity(examined),
        "How to make it faster": [f"- {line}" for line in _advice(examined)] or ["No suggestions."],
        "For a bug report": ["```", *_block(examined), "```"],
    }
    title = f"ADT-Tree {VERSION}: {subject.target.name} on this machine"
    return "\n\n".join([title, *("\n".join([f"## {name}", *lines]) for name, lines in parts.items() if lines)])


def _machine(subject: DiagnosticSetup) -> str:
    device = subject.device
    torch_is = f"PyTorch {torch.__version__}"
    if device.type == "cpu":
        memory = f"{psutil.virtual_memory().total / 2**30:.0f} GB of memory"
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} CPU with {capability}, {os.cpu_count()} cores, {memory}; {torch_is}."
    properties, (major, minor) = torch.cuda.get_device_properties(device), torch.cuda.get_device_capability(device)
    memory = f"{properties.total_memory / 2**30:.0f} GB of memory, {free_bytes(device) / 2**30:.1f} free"
    return f"{properties.name}, capability {major}.{minor}, {memory}; {torch_is}, CUDA {torch.version.cuda}."


def _model(examined: Diagnostics) -> list[str]:
    subject, target, decoder = examined.subject, examined.subject.target, examined.subject.target.decoder
    config, room = decoder.config, subject.decoding(subject.ways()[PLAIN]).memory_required()
    stored = f", weights in {decoder.weights}" if decoder.weights else ""
    dtype = str(decoder.dtype).removeprefix("torch.")
    lines = [
        f"{target.family}, {config.num_layers} layers of {config.hidden_size}, {dtype}{stored}: "
        f"{_size(decoder) / 2**30:.2f} GB, and {room / 2**30:.2f} GB for an image of {target.length} tokens.",
        "Drafter: " + ("a network." if subject.network else "no network, jacobi only."),
    ]
    if decoder.tile:
        has_far = examined.exact.fallback is None or examined.exact.fallback.far
        near = near_window(subject.device, decoder.dtype, config.head_dim) if has_far else None
        far = "all keys are summed in float64" if near is None else f"keys beyond {near} use a fast kernel"
        lines.append(f"Batch-invariant mode: {decoder.tile} rows per matrix product; in attention, {far}.")
    elif decoder.dtype in HALF:
        lines.append("Batch-invariant mode is off: drafting may change the image.")
    if subject.device.type == "cuda":
        why = graphs.disabled_reason(decoder)
        lines.append(f"CUDA graphs are off: {why}." if why else "CUDA graphs are on.")
    return lines


def _plain(examined: Diagnostics) -> list[str]:
    plain, decoder = examined.plain, examined.subject.target.decoder
    read = _size(decoder) - decoder.embedding.numel() * decoder.embedding.element_size()
    rate = read / plain.step
    return [
        f"A step takes {1000 * plain.step:.3g} ms and reads {read / 2**30:.2f} GB of weights: {rate / 2**30:.3g} GB/s, "
        f"{rate / examined.rate:.0%} of this device's copy rate."
    ]


def _costs(examined: Diagnostics) -> list[str]:
    profile, sizes = examined.profile, (0, *SIZES)
    if profile is None:
        return []
    rows = [f"| {name} | " + " | ".join(f"{profile.of(name, n):.2f}" for n in sizes) + " |" for name in profile.costs]
    guess = ["Estimated, not measured on this device."] if profile.name.startswith("built in") else []
    return [
        "Time of a round in plain steps, by the number of drafts that it verifies:",
        "",
        "| draft mode | " + " | ".join(map(str, sizes)) + " |",
        "|---" * (len(sizes) + 1) + "|",
        *rows,
        *guess,
    ]


def _methods(examined: Diagnostics) -> list[str]:
    lines = ["| method | tokens per pass | speed-up | drafting | alone | with another prompt |", "|---" * 6 + "|"]
    on_gpu = examined.subject.device.type != "cpu"
    for name, (draw, _) in examined.draws.items():
        alone, beside = ("the same" if same else "DIFFERS" for same in examined.same(name))
        times = f"{draw.pace / examined.plain.pace:.2f}"
        drafting = f"launches: {draw.launches}, waits: {draw.waits}" if on_gpu else f"{draw.drafting:.0%}"
        lines.append(f"| {name} | {draw.tokens:.2f} | {times} | {drafting} | {alone} | {beside} |")
    if examined.left_out:
        lines.append(f"Skipped to save time: {', '.join(examined.left_out)}.")
    count = int((examined.plain.codes >= 0).sum())
    return [*lines, f"Measured over the first {count} tokens of one image; a complete image may differ."]


def _identity(examined: Diagnostics) -> list[str]:
    differing = [name for name in examined.draws if not all(examined.same(name))]
    lines = []
    if examined.exact.differing:
        lines.append(
            f"Tokens that are processed {' or '.join(examined.exact.differing)} differ in the last bits from tokens "
            f"that are processed one by one. {examined.exact.remark} Please report this."
        )
    if not differing:
        tested = " that was tested" if examined.left_out else ""
        return [*lines, f"Every method{tested} gives the same tokens as plain decoding."]
    is_exact = examined.subject.target.decoder.tile > 0
    reason = "Please report this" if is_exact else "float32 has no batch-invariant mode, so near ties may differ"
    return [*lines, f"{', '.join(differing)}: different tokens than plain decoding. {reason}."]


def _advice(examined: Diagnostics) -> list[str]:
    subject, decoder, advice = examined.subject, examined.subject.target.decoder, list[str]()
    on_gpu = subject.device.type == "cuda"
    if on_gpu and decoder.dtype == torch.float32:
        advice.append("`dtype` bfloat16 halves the data that is read at every step.")
    if on_gpu and not decoder.weights and _size(decoder) > 2**31:
        advice.append("`weights` int8 halves the data that is read at every step, and changes the model slightly.")
    if not on_gpu and decoder.dtype != torch.float32 and decoder.weights is None:
        advice.append("On a CPU, `dtype` float32 is usually faster if there is enough memory.")
    if subject.network is None:
        known = find_published(examined.subject.target.name)
        trained = f"{known.drafter.repository} was trained for this model" if known and known.drafter else ""
        advice.append(f"Use a drafter network: {trained or '`train-drafter` makes one'}.")
    if on_gpu and graphs.disabled_reason(decoder):
        advice.append("CUDA graphs are off; a newer driver or PyTorch may help.")
    if "auto" in examined.draws:
        advice.append(_what_auto_does(examined))
    return advice


def _what_auto_does(examined: Diagnostics) -> str:
    pace = examined.draws["auto"][0].pace / examined.plain.pace
    best = max(examined.draws, key=lambda name: examined.draws[name][0].pace)
    return f"'auto' was {pace:.2f} times as fast as plain decoding; the fastest method was {best}."


def _block(examined: Diagnostics) -> list[str]:
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
        f"differences: {', '.join(differing) or 'none'}; graphs: {graphs.disabled_reason(decoder) or 'as usual'}; "
        f"products: {', '.join(reduced_precision_settings()) or 'as usual'}",
    ]


def _size(module: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in module.parameters())
