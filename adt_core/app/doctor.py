"""Report on how a model runs on this machine, for users and for bug reports.

The module `diagnostics` measures; this module formats the results. The report contains no paths and no user names.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..engine import graphs
from ..engine.device.products import ProductReport
from ..errors import Check
from ..kernels import choice, first_use
from ..memory_limit import memory_limit
from ..messages import Message, join, message
from ..models.allocation import free_bytes
from ..models.batch_invariance import HALF, near_window
from ..models.cpu import ALL_ROWS, max_mkl_rows
from ..models.load import find_published
from ..models.torch_private import product_settings
from ..policies import PLAIN, method_title
from ..policies.auto import SIZES
from ..recipe import Placement
from ..run.pipeline import Pipeline
from ..run.race import MIN_SAMPLES
from ..run.resolve import Hardware, resolve_recipe
from ..version import VERSION
from .diagnostics import PROMPTS, Diagnostics, DiagnosticSetup


def run(given: Mapping[str, Any], placement: Placement) -> str:
    """Load a model, measure it, and return the report.

    Raises:
        AdtError: If the model or its drafter cannot be loaded.
    """
    recipe = resolve_recipe(given, Hardware.of(placement.device))
    return diagnose(prepare_diagnosis(Pipeline.of(recipe, placement))).page


def allow_kernels() -> None:
    """Let Triton kernels be tried again on all GPUs on which a program has ended while it used them."""
    for index in range(torch.cuda.device_count()):
        first_use.forget(torch.device("cuda", index))


def prepare_diagnosis(
    pipeline: Pipeline, check: Check | None = None, progress: Callable[[float, str], None] | None = None
) -> DiagnosticSetup:
    """Encode the test prompts, and return what :func:`diagnose` measures. Arguments as in `DiagnosticSetup`."""
    return DiagnosticSetup(pipeline, pipeline.encode(PROMPTS), check, progress)


class Diagnosis(NamedTuple):
    """Findings on a model.

    Attributes:
        verdict: One line: whether the image stays the same, how much faster it is, and what to choose.
        page: The report in Markdown. Its first line is the verdict.
    """

    verdict: Message
    page: str


def diagnose(subject: DiagnosticSetup) -> Diagnosis:
    """Measure a loaded model and return the report."""
    results = Diagnostics(subject)
    verdict = _verdict(results)
    parts = {
        "Machine": [_machine(subject)],
        "Model": _model(results),
        "Kernels": kernels(subject),
        "No drafting": _plain(results),
        "Cost of drafts": _costs(results),
        "Methods": _methods(results),
        "Same image": _identity(results),
        "How to make it faster": [f"- {line}" for line in _advice(results)] or ["No suggestions."],
        "For a bug report": ["```", *_block(results), "```"],
    }
    title = f"ADT-Tree {VERSION}: {subject.target.name} on this machine"
    sections = ("\n".join([f"## {name}", *lines]) for name, lines in parts.items() if lines)
    return Diagnosis(verdict, "\n\n".join([f"**{verdict}**", title, *sections]))


def _verdict(results: Diagnostics) -> Message:
    differing = results.differing()
    same = message("diagnostics.differs", methods=join(differing, ", ")) if differing else message("diagnostics.same")
    speed = results.speedups.get("auto")
    if speed is None:
        return join((same, message("diagnostics.too_slow")))
    key = "diagnostics.faster" if speed.value >= 1 else "diagnostics.slower"
    return join((same, message(key, ratio=f"{speed.value:.1f}"), speed.remark))


def _machine(subject: DiagnosticSetup) -> str:
    device = subject.device
    pytorch = f"PyTorch {torch.__version__}"
    if device.type == "cpu":
        memory = f"{memory_limit().bytes / 2**30:.0f} GiB of memory"
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} CPU with {capability}, {os.cpu_count()} cores, {memory}; {pytorch}."
    properties = torch.cuda.get_device_properties(device)
    major, minor = torch.cuda.get_device_capability(device)
    memory = f"{properties.total_memory / 2**30:.0f} GiB of memory, {free_bytes(device) / 2**30:.1f} free"
    return f"{properties.name}, capability {major}.{minor}, {memory}; {pytorch}, CUDA {torch.version.cuda}."


def _model(results: Diagnostics) -> list[str]:
    subject = results.subject
    target = subject.target
    decoder = target.decoder
    config = decoder.config
    working = subject.decoding(subject.methods()[PLAIN]).memory_required()
    stored = f", weights in {decoder.weights}" if decoder.weights else ""
    dtype = str(decoder.dtype).removeprefix("torch.")
    lines = [
        f"{target.family}, {config.num_layers} layers of {config.hidden_size}, {dtype}{stored}: "
        f"{_num_bytes(decoder) / 2**30:.2f} GiB, and {working / 2**30:.2f} GiB for an image of {target.length} tokens.",
        "Drafter: " + ("a network." if subject.network else "no network, jacobi only."),
    ]
    if decoder.tile:
        has_far = results.invariance.fallback is None or results.invariance.fallback.far
        near = near_window(subject.device, decoder.dtype, config.head_dim) if has_far else None
        far = "all keys are summed in float64" if near is None else f"keys beyond {near} use a fast kernel"
        lines.append(f"Batch-invariant mode: {decoder.tile} rows per matrix product; in attention, {far}.")
    elif decoder.dtype in HALF:
        lines.append("Batch-invariant mode is off: drafting may change the image.")
    elif subject.device.type == "cpu" and decoder.dtype == torch.float32 and decoder.weights is None:
        lines.append(_float_products(results.products))
    if subject.device.type == "cuda":
        reason = graphs.disabled_reason(decoder)
        lines.append(f"CUDA graphs are off: {reason}." if reason else "CUDA graphs are on.")
    return lines


def _float_products(report: ProductReport) -> str:
    """Return which library multiplies float32 matrices, and which properties change the bits of a product."""
    few = max_mkl_rows()
    library = "MKL" if few == ALL_ROWS else f"MKL up to {few} rows, oneDNN for more"
    rows = "is the same in every product, so products are batch-invariant" if report.rows else "depends on other rows"
    threads = f"Up to {report.threads} threads give the same bits" if report.threads > 1 else "One thread is used"
    return f"float32 products ({library}): a row {rows}. {threads}."


def kernels(subject: DiagnosticSetup) -> list[str]:
    """Return which Triton kernels are used, or why none is; nothing if the device is no GPU."""
    if subject.device.type == "cpu":
        return []
    missing = choice.missing_support(subject.device)
    if missing:
        return [f"PyTorch computes all operations: {missing}."]
    lines = ["| operation | operands | computed by | reason |", "|---" * 4 + "|"]
    for verdict in choice.verdicts():
        user = "Triton kernel" if verdict.uses_kernel else "PyTorch"
        reason = verdict.reason.replace("|", "/")
        lines.append(f"| {verdict.operation} | {verdict.operands} | {user} | {reason} |")
    return lines


def _plain(results: Diagnostics) -> list[str]:
    seconds = results.plain.round_seconds
    decoder = results.subject.target.decoder
    read = _num_bytes(decoder) - decoder.embedding.numel() * decoder.embedding.element_size()
    rate = read / seconds
    return [
        f"A plain round takes {1000 * seconds:.3g} ms and reads {read / 2**30:.2f} GiB of weights: "
        f"{rate / 2**30:.3g} GiB/s, {rate / results.rate:.0%} of this device's copy rate."
    ]


def _costs(results: Diagnostics) -> list[str]:
    profile = results.profile
    if profile is None:
        return []
    sizes = (0, *SIZES)
    rows = [f"| {name} | " + " | ".join(f"{profile.cost(name, n):.2f}" for n in sizes) + " |" for name in profile.costs]
    note = ["Estimated, not learned on this device."] if not profile.decodings else []
    return [
        "Time of a round in plain rounds, by the number of drafts that it verifies:",
        "",
        "| draft mode | " + " | ".join(map(str, sizes)) + " |",
        "|---" * (len(sizes) + 1) + "|",
        *rows,
        *note,
    ]


def _methods(results: Diagnostics) -> list[str]:
    lines = ["| method | tokens per pass | speed-up | drafting | one image | batch of two |", "|---" * 6 + "|"]
    on_gpu = results.subject.device.type != "cpu"
    for name, (run, _) in results.runs.items():
        single, batched = ("the same" if same else "DIFFERS" for same in results.is_identical(name))
        speed = results.speedups.get(name)
        speedup = "1" if name == PLAIN else "not measured" if speed is None else speed.text(1)
        drafting = f"launches: {run.launches}, waits: {run.waits}" if on_gpu else f"{run.drafting:.0%}"
        lines.append(f"| {method_title(name)} | {run.tokens:.2f} | {speedup} | {drafting} | {single} | {batched} |")
    if results.left_out:
        lines.append(f"Skipped to save time: {', '.join(map(method_title, results.left_out))}.")
    if not results.speedups:
        return [*lines, "The speed-ups were not measured, because this model is too slow here."]
    tokens = results.turn_tokens
    length = results.subject.target.length
    part = "complete images" if tokens == length else f"the first {tokens} of {length} tokens of an image"
    interval = " with 95 % interval" if results.turns >= MIN_SAMPLES else ""
    note = f"Speed-up over no drafting: median{interval} of {results.turns} turns over {part}."
    return [*lines, f"{note} In a turn, the rounds of all methods alternate."]


def _identity(results: Diagnostics) -> list[str]:
    differing = results.differing()
    lines = []
    if results.invariance.differing:
        lines.append(
            f"Tokens that are processed {' or '.join(results.invariance.differing)} differ in the last bits from "
            f"tokens that are processed one by one. {results.invariance.remark} Please report this."
        )
    if not differing:
        tested = " that was tested" if results.left_out else ""
        return [*lines, f"Every method{tested} gives the same tokens as no drafting."]
    is_invariant = results.subject.target.decoder.tile > 0
    reason = "Please report this" if is_invariant else "float32 has no batch-invariant mode, so near ties may differ"
    return [*lines, f"{', '.join(differing)}: different tokens than no drafting. {reason}."]


def _advice(results: Diagnostics) -> list[str]:
    subject = results.subject
    decoder = subject.target.decoder
    on_gpu = subject.device.type == "cuda"
    advice: list[str] = []
    if on_gpu and decoder.dtype == torch.float32:
        advice.append("`dtype` bfloat16 halves the data that is read at every step.")
    if on_gpu and not decoder.weights and _num_bytes(decoder) > 2**31:
        advice.append(
            "`weights` int8 halves the data that is read at every step, and int4 needs little more than a quarter of "
            "the memory. Both change the model slightly."
        )
    if not on_gpu and decoder.dtype != torch.float32 and decoder.weights is None:
        advice.append("On a CPU, `dtype` float32 is usually faster if there is enough memory.")
    if subject.network is None:
        row = find_published(subject.target.name)
        trained = f"{row.drafter.repository} was trained for this model" if row and row.drafter else ""
        advice.append(f"Use a drafter network: {trained or '`train-drafter` makes one'}.")
    if on_gpu and graphs.disabled_reason(decoder):
        advice.append("CUDA graphs are off; a newer driver or PyTorch may help.")
    return advice


def _block(results: Diagnostics) -> list[str]:
    subject = results.subject
    decoder = subject.target.decoder
    config = decoder.config
    same = {name: "/".join("same" if one else "differs" for one in results.is_identical(name)) for name in results.runs}
    return [
        f"ADT-Tree {VERSION}, Python {platform.python_version()}, {platform.system()}; {_machine(subject)}",
        f"{subject.target.family} {config.num_layers}x{config.hidden_size}, heads {config.num_heads}/"
        f"{config.num_kv_heads} of {config.head_dim}, {decoder.dtype}, weights {decoder.weights}, tile {decoder.tile}",
        f"plain {1000 * results.plain.round_seconds:.3g} ms, copies {results.rate / 2**30:.3g} GiB/s; "
        f"took {results.seconds:.0f} s",
        *(
            f"{name}: {run.tokens:.2f} tokens, {1000 * run.round_seconds:.3g} ms, {same[name]}"
            for name, (run, _) in results.runs.items()
        ),
        f"differences: {', '.join(results.invariance.differing) or 'none'}; "
        f"graphs: {graphs.disabled_reason(decoder) or 'as usual'}; "
        f"products: {', '.join(product_settings()) or 'as usual'}; "
        f"Triton kernels: {_kernel_summary(subject)}",
    ]


def _kernel_summary(subject: DiagnosticSetup) -> str:
    missing = choice.missing_support(subject.device)
    if missing:
        return missing
    used = sum(verdict.uses_kernel for verdict in choice.verdicts())
    return f"{used} of {len(choice.verdicts())} passed their trials"


def _num_bytes(module: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in (*module.parameters(), *module.buffers()))
