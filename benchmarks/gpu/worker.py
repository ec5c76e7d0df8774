"""Process that measures the cases of one part, and appends the results to a file.

    python -m benchmarks.gpu.worker MODULE FILE FIRST [rehearse]

The first line of the file contains the description of the part and the names of its cases. After it, the file gets one
line for each case that begins, one for each row, and one for each error. If the process is killed, all results so far
are in the file.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch

from .device import describe_error, free_memory, synchronise


def run(module: str, file: Path, first: int, rehearse: bool) -> None:
    """Measure the cases of a part.

    Args:
        module: Module of the part. A colon and the name of a function may follow, which returns the cases.
        first: Index of the first case to measure. Earlier cases are skipped.

    Raises:
        RuntimeError: If the device fails. The remaining cases then need a new process.
    """
    torch.set_num_threads(min(8, torch.get_num_threads()))  # more threads make a small model slower
    name, _, function = module.partition(":")
    part = import_module(name)
    cases = getattr(part, function or "cases")(rehearse)

    def append(**entry: object) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")

    append(about=part.__doc__, cases=[name for name, _ in cases])
    for number, (name, measure) in list(enumerate(cases))[first:]:
        append(begun=number)
        try:
            for row in measure():
                append(**{"error": row} if "error" in row else {"row": row})
        except Exception as error:  # continue with the other cases
            traceback.print_exc()
            append(error={"what": name, "error": describe_error(error)})
            synchronise()  # raises if the device has failed
        free_memory()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), "rehearse" in sys.argv[4:])
