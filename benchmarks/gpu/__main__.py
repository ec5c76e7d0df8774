"""Run all GPU measurements unattended.

    python -m benchmarks.gpu [--minutes 30] [--only PART ...] [--output output] [--rehearse]

The benchmark needs CUDA, PyTorch and this project's requirements. It needs no network.

The benchmark consists of parts, and a part consists of cases. The parts run in the order of their importance: the
first five answer within five minutes whether the engine works on this device. Every part runs in a separate process and
has a time limit. If there is more time than all limits together, the limits are longer. If a part or a case fails, the
report contains the error, and the run continues. The benchmark writes ``gpu.json`` and ``gpu.md`` to the folder
``--output`` whenever it has new results, so an interrupted run keeps its results.

The part ``smoke`` tries every Triton kernel. Later parts run without the kernels that failed there; if the part itself
fails, they run without kernels.

``--only`` runs only some parts, in the given order, for example if a machine is available for a few minutes only.
``--rehearse`` uses small random models and also runs without CUDA. Such a run tests the benchmark itself. The times
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import psutil

from adt_core.cache_folder import VARIABLE as CACHE
from adt_core.files import write, write_json
from adt_core.kernels.choice import VARIABLE as KERNELS

from ..harness import ROOT, git
from .report import markdown
from .smoke import healthy_operations

SMOKE = "smoke"
PARTS = {
    "device": ("benchmarks.gpu.device", 20),
    SMOKE: ("benchmarks.gpu.smoke", 70),
    "precision": ("benchmarks.gpu.tokens:half", 60),
    "bits": ("benchmarks.gpu.kernels:bits", 60),
    "rounds": ("benchmarks.gpu.kernels:rounds", 90),
    "times": ("benchmarks.gpu.kernels:times", 150),
    "quantised": ("benchmarks.gpu.kernels:quantised", 240),
    "tokens": ("benchmarks.gpu.tokens", 160),
    "pieces": ("benchmarks.gpu.pieces", 220),
    "contact": ("benchmarks.gpu.contact", 260),
    "images": ("benchmarks.gpu.images", 150),
    "batches": ("benchmarks.gpu.batches", 150),
    "memory": ("benchmarks.gpu.memory", 80),
    "other precision": ("benchmarks.gpu.tokens:other_half", 90),
}
"""Parts in the order in which they run: name -> module and time limit in seconds. The function `cases` of the module
returns the cases, or the function whose name follows a colon."""
MIN_SECONDS = 20.0
"""Minimum time of a part in seconds. On a new machine, the first imports take about ten seconds of it. If less time is
left, the part is left out."""
MIN_SILENCE = 120.0
"""Seconds that a case may run without output before its process is stopped. `MAX_SILENCE_SHARE` may allow more."""
MAX_SILENCE_SHARE = 1 / 3
"""Share of the part's time that a case may run without output. The larger of both limits applies."""
ENDED = "ended"
FAILED = "failed"
CUT = "cut off at its limit"
LEFT_OUT = "left out, because the time was over"


def run_worker(
    command: list[str],
    file: Path,
    log: Path,
    seconds: float,
    silence: float,
    on_output: Callable[[], object],
    variables: Mapping[str, str] = {},
) -> int | None:
    """Run a worker process with a time limit.

    Args:
        log: File for the standard output and standard error of the worker.
        silence: Maximum time in seconds without growth of `file`.
        on_output: Function to call whenever `file` has grown.

    Returns:
        Exit code of the worker, or None if the worker was killed at one of the limits.
    """
    end = time.monotonic() + seconds
    silence_end = time.monotonic() + silence
    size = -1
    with log.open("ab") as output:
        streams = {"stdout": output, "stderr": output, "stdin": subprocess.DEVNULL}
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams)
        while (now := time.monotonic()) < min(end, silence_end):
            try:
                return process.wait(min(1.0, end - now))
            except subprocess.TimeoutExpired:
                new_size = file.stat().st_size if file.exists() else 0
                if new_size != size:
                    size = new_size
                    silence_end = time.monotonic() + silence
                    on_output()
        _kill(process)
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver can't be killed
            process.wait(30)
        return None


def _kill(process: subprocess.Popen) -> None:
    """Kill a worker and, except on Windows, the processes that it has started, which would slow down the next part."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def read_entries(file: Path) -> list[dict]:
    """Return the entries that a worker has written, one per line of JSON. Incomplete lines are ignored."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return entries


def last_log_line(log: Path) -> str:
    """Return the last line of a worker's log. Empty lines and torch's lines that start with "USDT:" are ignored."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("USDT:")]
    return lines[-1] if lines else "no output"


def run_part(
    module: str,
    seconds: float,
    folder: Path,
    rehearse: bool,
    on_results: Callable[[dict], object],
    variables: Mapping[str, str] = {},
) -> dict:
    """Run a part. If a case ends the process, run the remaining cases in a new process.

    Args:
        module: Module of the part, with the function that returns the cases, as in :data:`PARTS`.
        on_results: Function to call with all results of the part so far, whenever there are new results.

    Returns:
        Results of the part, as values that JSON supports.
    """
    file = folder / f"{module.replace(':', '.')}.jsonl"
    log = file.with_suffix(".log")
    silence = max(MIN_SILENCE, seconds * MAX_SILENCE_SHARE)
    crashes: list[dict] = []
    started = time.monotonic()
    first = 0

    def results(status: str) -> dict:
        clock = {"status": status, "seconds": time.monotonic() - started, "limit": seconds}
        return clock | _results(read_entries(file), crashes)

    while True:
        command = [sys.executable, "-m", "benchmarks.gpu.worker", module, str(file), str(first)]
        command += ["rehearse"] * rehearse
        left = seconds - (time.monotonic() - started)
        code = run_worker(command, file, log, left, silence, lambda: on_results(results(CUT)), variables)
        is_over = time.monotonic() - started >= seconds
        if code == 0:
            return results(FAILED if crashes else ENDED)
        error = f"exit code {code}: {last_log_line(log)}"
        if code is None:
            error = f"stopped after {seconds:.0f} s" if is_over else f"stopped after {silence:.0f} s without output"
        names, begun = _cases(read_entries(file))
        crashes.append({"what": names[begun - 1] if begun else "before its first case", "error": error})
        if is_over or begun <= first or begun >= len(names):
            return results(CUT if code is None and is_over else FAILED)
        first = begun


def _cases(entries: list[dict]) -> tuple[list[str], int]:
    """Return the names of all cases of a part, and the number of cases that have begun."""
    names = next((entry["cases"] for entry in entries if "cases" in entry), [])
    return names, 1 + max((entry["begun"] for entry in entries if "begun" in entry), default=-1)


def _results(entries: list[dict], crashes: list[dict]) -> dict:
    """Return the results of a part from the entries of its workers and the errors that ended worker processes."""
    names, begun = _cases(entries)
    return {
        "about": next((entry["about"] for entry in entries if "about" in entry), None),
        "cases": len(names),
        "begun": begun,
        "left_out": names[begun:],
        "rows": [entry["row"] for entry in entries if "row" in entry],
        "errors": [entry["error"] for entry in entries if "error" in entry] + crashes,
    }


def measure(
    minutes: float, output: Path, rehearse: bool, only: Sequence[str] | None = None, spent: float = 0.0
) -> dict:
    """Run parts, and write all results so far whenever there are new results.

    Args:
        minutes: Time limit of the complete run in minutes.
        only: Names of the parts to run, in this order. None runs all parts.
        spent: Seconds of the time limit that are over already.

    Returns:
        The content of gpu.json.
    """
    end = time.monotonic() + 60 * minutes - spent
    results: dict = {
        "rehearsal": rehearse,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") or None,
        "minutes": minutes,
        "parts": {},
    }

    def store(name: str, part: dict) -> None:
        results["parts"][name] = part
        write_json(output / "gpu.json", results)
        write(output / "gpu.md", markdown(results).encode())

    parts = {name: PARTS[name] for name in only or PARTS}
    needed = sum(limit for _, limit in parts.values())
    with tempfile.TemporaryDirectory() as folder:
        variables = {CACHE: str(Path(folder) / "cache")}  # results must not depend on earlier runs
        for name, (module, limit) in parts.items():
            left = end - time.monotonic()
            seconds = min(left, max(MIN_SECONDS, limit * max(left / needed, 1)))
            needed -= limit
            if left < MIN_SECONDS:
                store(name, {"status": LEFT_OUT, "seconds": 0.0, "limit": 0.0} | _results([], []))
                continue
            print(f"{name}, at most {seconds:.0f} s ...", flush=True)
            part = run_part(module, seconds, Path(folder), rehearse, partial(store, name), variables)
            store(name, part)
            _print_part(part)
            if name == SMOKE:
                variables[KERNELS] = ",".join(healthy_operations(part["rows"], part["errors"])) or "0"
                print(f"  kernels of the later parts: {variables[KERNELS]}", flush=True)
    return results


def _print_part(part: dict) -> None:
    errors = part["errors"]
    counts = f"{len(part['rows'])} rows, {len(errors)} errors"
    print(f"  {part['status']} after {part['seconds']:.0f} s, {counts}", flush=True)
    for error in errors:
        print(f"  {error['what']}: {error['error']}", flush=True)


def has_cuda() -> bool:
    """Return whether CUDA is available.

    Another process makes the check, so that this process allocates no GPU memory.
    """
    check = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", check], stderr=subprocess.DEVNULL).returncode == 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line of the GPU benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--output", type=Path, default=ROOT / "output")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args(arguments)
    if not args.rehearse and not has_cuda():
        print("PyTorch finds no CUDA device; run this on a machine with one, or add --rehearse.", file=sys.stderr)
        return 2
    spent = time.time() - psutil.Process().create_time()  # imports take ten seconds or more on a new machine
    results = measure(args.minutes, args.output, args.rehearse, args.only, spent)
    print(f"Results are in {args.output / 'gpu.md'} and gpu.json.")
    return int(any(part["status"] != ENDED or part["errors"] for part in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
