"""Tries many inputs: ``python -m tests.fuzz --inputs 20000``. Exit code 1 if one crashed, hung or left its place."""

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
    "configurations": 4,
    "weights": 3,
    "pickles": 2,
    "lists": 2,
    "captions": 2,
    "records": 1,
    "commands": 2,
    "settings": 2,
    "pictures": 1,
    NODES: 1,
}
"""How the inputs are shared out among the fuzzers."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20000, help="in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (default: 0)")
    parser.add_argument("--only", choices=SHARES, action="append", help="a fuzzer; may be given again (default: all)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.only or list(SHARES)
    if options.here:
        return _one(chosen[0], options.inputs, options.seed)
    whole = sum(SHARES[name] for name in chosen)
    print(
        f"{'fuzzer':16} {'tried':>7} {'refused':>8} {'crashed':>8} {'hung':>5} {'outside':>8} {'slowest':>9}",
        flush=True,
    )
    codes = [_apart(name, -(-options.inputs * SHARES[name] // whole), options.seed) for name in chosen]
    return int(any(codes))


def _apart(name: str, inputs: int, seed: int) -> int:
    """Run a fuzzer in a process of its own: an input that ends the process is found, and the next fuzzer begins."""
    words = ["--only", name, "--inputs", str(inputs), "--seed", str(seed), "--here"]
    code = subprocess.run([sys.executable, "-m", "tests.fuzz", *words]).returncode
    if code not in (0, 1):
        print(f"{name}: the process ended with code {code}")
    return code


def _one(name: str, inputs: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "place"
        os.environ |= {"HOME": home, "ADT_TREE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        logging.disable()  # records that are damaged, say, are told of again and again
        from . import run

        figures = run.run(name, inputs, seed, folder)
    counts = figures.tried, figures.refused, len(figures.crashes), figures.hung, len(figures.outside)
    print("{:16} {:7} {:8} {:8} {:5} {:8} {:7.1f} s".format(name, *counts, figures.slowest), flush=True)
    for failure in figures.failures():
        print(failure)
    return int(bool(figures.failures()))


if __name__ == "__main__":
    sys.exit(main())
