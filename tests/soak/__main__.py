"""Many runs in one process, mixed by a seed.

    python -m tests.soak --runs 1000                  queued in a real ComfyUI server
    python -m tests.soak --runs 1000 --in-process     by the engine alone

Some are cancelled, some can't be had, some are compared with plain decoding. After a tenth of them memory, threads and
open files of the process are what they may be at the end. The exit code is 1 if anything is wrong. It needs Linux, with
glibc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from adt_core.engine.device.profiles import FOLDER

from .engine import Engine
from .loop import Report, soak
from .models import write_models

KERNELS = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "128")
"""Environment: how many kernels oneDNN and torch's layer above it keep. They compile one, of some 0.5 MiB, for every
shape of a product. Trees have many shapes, and with room for 1,024 kernels memory would grow for hundreds of runs."""


def run(options: argparse.Namespace, folder: Path) -> Report:
    """All runs. folder: an empty one for models, outputs and the cache."""
    os.environ |= {FOLDER: str(folder / "cache"), **KERNELS}
    write_models(folder / "models")
    warm_up = max(options.runs // 10, 1)
    if options.in_process:
        return soak(Engine(folder / "models"), options.runs, warm_up, options.seed)
    sys.path.append(str(Path(__file__).parents[1] / "workflow"))  # whose modules import each other by name
    from .server import Server

    with Server(folder) as server:
        return soak(server, options.runs, warm_up, options.seed)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.soak", None, __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the mix")
    parser.add_argument("--in-process", action="store_true", help="without a server")
    parser.add_argument("--output", type=Path, help="file for all figures, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(options, Path(folder))
    if options.output is not None:
        options.output.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    print(report.table())
    wrong = report.judge()
    print("\n".join(wrong) or "All is well.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
