"""Everything that is to be known of a GPU, in one run that nobody has to watch.

    python -m benchmarks.gpu [--minutes 30] [--only PART ...] [--output output] [--rehearse]

Needs CUDA, PyTorch and this project's requirements, and no network. Every part runs in a process of its own within its
share of the minutes; what one leaves over goes to those after it. A part or a case that fails is reported, and the next
one runs. ``gpu.json`` and ``gpu.md`` are written anew into ``--output`` as rows come. ``--only`` runs some of the
parts, where a machine is lent for a few minutes at a time. ``--rehearse`` runs on small random models, also without
CUDA: to see that the parts run, not how fast.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from adt_core.files import write, write_json

from .report import markdown

PARTS = {
    "device": ("benchmarks.gpu.device", 1),
    "contact": ("benchmarks.gpu.contact", 8),
    "tokens": ("benchmarks.gpu.tokens", 4),
    "pieces": ("benchmarks.gpu.pieces", 6),
    "images": ("benchmarks.gpu.images", 4),
    "batches": ("benchmarks.gpu.batches", 4),
    "memory": ("benchmarks.gpu.memory", 3),
    "precision": ("benchmarks.gpu.precision", 3),
}
"""The parts in their order: module, and share of the time."""
ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 20.0
"""Of a part. Some ten of them go before its first case begins: on the device, imports are slow the first time."""
LEAST_SILENCE, MOST_SILENCE = 120.0, 1 / 3
"""A case hangs that writes nothing for so many seconds, or for this share of its part's time if that is longer. Then
the next one begins."""
ENDED, FAILED, CUT = "ended", "failed", "cut off at its limit"


def wait(
    command: list[str], file: Path, log: Path, seconds: float, silence: float, grown: Callable[[], object]
) -> int | None:
    """The exit code of a worker that writes to ``file``, its output to ``log``; None if it had to be ended.

    That is after ``seconds``, or when nothing new was in the file for ``silence`` seconds. grown: called when there is
    something new.
    """
    end, size, quiet = time.monotonic() + seconds, -1, time.monotonic() + silence
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        while (now := time.monotonic()) < min(end, quiet):
            try:
                return process.wait(min(1.0, end - now))
            except subprocess.TimeoutExpired:
                written = file.stat().st_size if file.exists() else 0
                if written != size:
                    size, quiet = written, time.monotonic() + silence
                    grown()
        process.kill()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass  # a process that hangs in the driver can't be ended; the next one runs beside it
        return None


def said(file: Path) -> list[dict]:
    """The lines that a worker wrote; the last one may be cut off."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def last_words(log: Path) -> str:
    """The last line of a process's output that says something; torch's own tracing says nothing."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("USDT:")]
    return lines[-1] if lines else "it said nothing"


def run_part(module: str, seconds: float, folder: Path, rehearse: bool, told: Callable[[dict], object]) -> dict:
    """Run a part, and again from the next case on where a case ended its process. What it found, as plain JSON.

    told: is given that while the part runs, too, so that nothing is lost if this process is ended.
    """
    file, log = folder / f"{module}.jsonl", folder / f"{module}.log"
    started, first, crashes = time.monotonic(), 0, list[dict]()
    silence = max(LEAST_SILENCE, seconds * MOST_SILENCE)

    def so_far(status: str) -> dict:
        clock = {"status": status, "seconds": time.monotonic() - started, "limit": seconds}
        return clock | _results(said(file), crashes)

    while True:
        command = [sys.executable, "-m", "benchmarks.gpu.worker", module, str(file), str(first)]
        left = seconds - (time.monotonic() - started)
        code = wait(command + ["rehearse"] * rehearse, file, log, left, silence, lambda: told(so_far(CUT)))
        over = time.monotonic() - started >= seconds
        if code == 0:
            return so_far(FAILED if crashes else ENDED)
        words = f"exit code {code}: {last_words(log)}"
        if code is None:
            words = f"cut off after {seconds:.0f} s" if over else f"ended after {silence:.0f} s without a word"
        names, begun = _cases(said(file))
        crashes.append({"what": names[begun - 1] if begun else "its beginning", "error": words})
        if over or begun <= first or begun >= len(names):
            return so_far(CUT if code is None and over else FAILED)
        first = begun


def _cases(lines: list[dict]) -> tuple[list[str], int]:
    """Their names, and how many of them have begun, by the lines of a worker."""
    names = next((line["cases"] for line in lines if "cases" in line), [])
    return names, 1 + max((line["begun"] for line in lines if "begun" in line), default=-1)


def _results(lines: list[dict], crashes: list[dict]) -> dict:
    """What the lines of a worker say, and what its ends did."""
    names, begun = _cases(lines)
    return {
        "about": next((line["about"] for line in lines if "about" in line), None),
        "cases": len(names),
        "begun": begun,
        "left_out": names[begun:],
        "rows": [line["row"] for line in lines if "row" in line],
        "errors": [line["error"] for line in lines if "error" in line] + crashes,
    }


def commit() -> str | None:
    """Of this checkout; None if it is none."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def measure(minutes: float, output: Path, rehearse: bool, only: Collection[str] | None = None) -> dict:
    """Run the parts of these names, all unless told, and write what is known whenever that grows."""
    end, results = time.monotonic() + 60 * minutes, {
        "rehearsal": rehearse,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "minutes": minutes,
        "parts": {},
    }  # fmt: skip

    def write_down(name: str, found: dict) -> None:
        results["parts"][name] = found
        write_json(output / "gpu.json", results)
        write(output / "gpu.md", markdown(results).encode())

    with tempfile.TemporaryDirectory() as folder:
        parts = {name: part for name, part in PARTS.items() if only is None or name in only}
        left = sum(share for _, share in parts.values())
        for name, (module, share) in parts.items():
            seconds = max(LEAST_SECONDS, (end - time.monotonic()) * share / left)
            left -= share
            print(f"{name}, at most {seconds:.0f} s ...", flush=True)
            found = run_part(module, seconds, Path(folder), rehearse, partial(write_down, name))
            write_down(name, found)
            rows, errors = len(found["rows"]), found["errors"]
            print(f"  {found['status']} after {found['seconds']:.0f} s, {rows} rows, {len(errors)} errors", flush=True)
            for error in errors:
                print(f"  {error['what']}: {error['error']}", flush=True)
    return results


def has_cuda() -> bool:
    """Asked in another process, so that this one takes nothing of the GPU's memory."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", question], stderr=subprocess.DEVNULL).returncode == 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--output", type=Path, default=ROOT / "output")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args(arguments)
    if not args.rehearse and not has_cuda():
        print("PyTorch finds no CUDA device here; run this on a machine with one, or add --rehearse.", file=sys.stderr)
        return 2
    results = measure(args.minutes, args.output, args.rehearse, args.only)
    print(f"{args.output / 'gpu.md'} and gpu.json are written.")
    return int(any(part["status"] != ENDED or part["errors"] for part in results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
