"""Processes that run the command line of other checkouts of this project, to compare two commits.

Each checkout has its own process. The benchmarks use only the command line ``python -m adt_core``, so two checkouts can
be compared even if all their internal names differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

_SERVER = """
import contextlib, io, json, runpy, sys
from pathlib import Path
import adt_core

print(json.dumps(str(Path(adt_core.__file__).resolve().parents[1])), flush=True)
for line in sys.stdin:
    sys.argv[1:] = json.loads(line)
    output = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_module("adt_core", run_name="__main__")
        except SystemExit as exit:
            code = exit.code or 0
    print(json.dumps([code, output.getvalue()]), flush=True)
"""
"""Program of the process. Each line of its standard input is a JSON list of arguments, with which
it runs ``python -m adt_core``. All runs share one process, so that torch is imported only once."""


class Checkout:
    """Process that runs the command line of a checkout. Between two calls of `run` the process is idle.

    Args:
        folder: Root of the checkout. It is also the current folder of the process.
    """

    def __init__(self, folder: Path, threads: int):
        self._folder = folder.resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        imported = self._receive()
        if imported != str(self._folder):
            sys.exit(f"{folder}: its process imports adt_core from {imported}; name the root of a checkout.")

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()

    def _receive(self):
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._folder}: adt_core could not be run; see the error above.")
        return json.loads(line)

    def run(self, arguments: list[str]) -> str:
        """Run ``python -m adt_core`` in the checkout and return the output.

        Raises:
            SystemExit: If the command fails.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        code, output = self._receive()
        if code:
            reason = output.strip().splitlines()[-1:] or ["no output"]
            sys.exit(f"{self._folder}: {' '.join(arguments)} exited with {code}: {reason[0]}")
        return output
