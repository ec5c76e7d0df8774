"""Soak test: many random runs in one process. A seed selects the runs.

    python -m tests.soak --runs 1000                  queued in a ComfyUI server
    python -m tests.soak --runs 1000 --in-process     with the engine only

Some runs are cancelled, some are invalid, and some are compared with plain decoding. Memory, threads and open files at
the end are compared with the values after the first tenth of the runs. The exit code is 1 if a check fails. The test
needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from adt_core.cache_folder import VARIABLE

from .engine import Engine
from .loop import Report, soak
from .models import write_models

KERNEL_CACHES = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "128")
"""Environment variables that limit the kernel caches of oneDNN and of torch's layer above it. These caches store a
kernel of about 0.5 MiB for each shape of a matrix product. Draft trees cause many shapes. With the default limit of
1,024 kernels, memory would therefore grow for hundreds of runs."""


def run(options: argparse.Namespace, folder: Path) -> Report:
    """Run the soak test."""
    os.environ |= {VARIABLE: str(folder / "cache"), **KERNEL_CACHES}
    write_models(folder / "models")
    warm_up = max(options.runs // 10, 1)
    if options.in_process:
        return soak(Engine(folder / "models"), options.runs, warm_up, options.seed)
    sys.path.append(str(Path(__file__).parents[1] / "workflow"))  # its modules import each other by name
    from .server import Server

    with Server(folder) as server:
        return soak(server, options.runs, warm_up, options.seed)


def main() -> int:
    """Run the soak test of the command line and return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak", None, __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1000, help="number of runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests")
    parser.add_argument("--in-process", action="store_true", help="without a server")
    parser.add_argument("--output", type=Path, help="JSON file for all results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(options, Path(folder))
    if options.output is not None:
        options.output.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    print(report.table())
    failures = report.failures()
    print("\n".join(failures) or "All checks passed.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
