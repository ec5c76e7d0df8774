"""Command ``python -m tests.fuzz``: try many inputs.

The exit code is 1 if an input crashes the code, makes it hang, or makes it do something forbidden, such as writing
outside of the fuzzer's folder.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NODES = "nodes"
SHARES = {
    "configurations": 4, "weights": 3, "pickles": 2, "lists": 2, "captions": 2, "records": 1, "commands": 2,
    "settings": 2, "pictures": 1, NODES: 1,
}  # fmt: skip
"""Weight of each fuzzer. It determines the fuzzer's share of the inputs."""


def main() -> int:
    """Run the fuzzers of the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20000, help="total number of inputs (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    parser.add_argument("--only", choices=SHARES, action="append", help="fuzzer to run; repeatable (default: all)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.only or list(SHARES)
    if options.here:
        return _run_here(chosen[0], options.inputs, options.seed)
    total = sum(SHARES[name] for name in chosen)
    titles = ("fuzzer", "tried", "refused", "crashed", "hung", "outside", "slowest")
    print("{:16} {:>7} {:>8} {:>8} {:>5} {:>8} {:>9}".format(*titles), flush=True)
    codes = [_run_in_process(name, -(-options.inputs * SHARES[name] // total), options.seed) for name in chosen]
    return int(any(codes))


def _run_in_process(name: str, inputs: int, seed: int) -> int:
    """Run a fuzzer in a child process. If an input kills the process, the other fuzzers still run."""
    arguments = ["--only", name, "--inputs", str(inputs), "--seed", str(seed), "--here"]
    code = subprocess.run([sys.executable, "-m", "tests.fuzz", *arguments]).returncode
    if code not in (0, 1):
        print(f"{name}: the process ended with code {code}")
    return code


def _run_here(name: str, inputs: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "place"
        os.environ |= {"HOME": home, "ADT_TREE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        logging.disable()  # damaged files cause many equal warnings
        from . import run

        result = run.run(name, inputs, seed, folder)
    counts = (result.tried, result.refused, len(result.crashes), result.hung, len(result.outside))
    print("{:16} {:7} {:8} {:8} {:5} {:8} {:7.1f} s".format(name, *counts, result.slowest), flush=True)
    for failure in result.failures():
        print(failure)
    return int(bool(result.failures()))


if __name__ == "__main__":
    sys.exit(main())
