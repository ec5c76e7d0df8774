"""One part in a process of its own: measures its cases one by one and writes what it finds, line by line.

    python -m benchmarks.gpu.worker MODULE FILE FIRST [rehearse]

The first line holds what the part says of itself and the names of its cases; then there is a line for each case that
begins, each row, and each error. So whatever becomes of this process, what it had measured is kept.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch

from .device import free_memory, last_line, synchronise


def run(module: str, file: Path, first: int, rehearse: bool) -> None:
    """Measure the cases of a part from number ``first`` on. Raises if the device is of no use any more."""
    torch.set_num_threads(min(8, torch.get_num_threads()))  # more make a small model slower
    part = import_module(module)
    cases = part.cases(rehearse)

    def say(**entry: object) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")

    say(about=part.__doc__, cases=[name for name, _ in cases])
    for number, (name, measure) in list(enumerate(cases))[first:]:
        say(begun=number)
        try:
            for row in measure():
                say(**{"error": row} if "error" in row else {"row": row})
        except Exception as error:  # the other cases are measured none the less
            traceback.print_exc()
            say(error={"what": name, "error": last_line(error)})
            synchronise()  # raises if the device has failed: a fresh process must go on
        free_memory()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), "rehearse" in sys.argv[4:])
