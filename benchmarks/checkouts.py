"""Checkouts of this project side by side: each runs its own ``python -m adt_core`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parents[1]
_SERVE = """
import contextlib, io, json, sys
from pathlib import Path
import adt_core
from adt_core.cli import main

print(json.dumps(str(Path(adt_core.__file__).resolve().parents[1])), flush=True)
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(json.loads(line))
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


class Checkout:
    """The command line of a checkout, imported once and called many times. It works only while ``run`` waits for it.

    It runs in the same Python as the caller, with ``threads`` CPU threads and with the checkout as its working folder.
    """

    def __init__(self, folder: Path, threads: int):
        self._folder = folder.resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = self._answer()
        if found != str(self._folder):
            sys.exit(f"{folder}: its processes import adt_core from {found}; name the root of a checkout.")

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()

    def _answer(self):
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._folder}: adt_core could not be run; the reason is above.")
        return json.loads(line)

    def run(self, arguments: list[str]) -> tuple[int, str]:
        """Run ``python -m adt_core`` with these arguments. Returns its exit code and all that it printed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return tuple(self._answer())
