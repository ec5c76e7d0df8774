"""Runner for a fuzzer. It counts the outcomes."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, chdir
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adt_core.errors import AdtError

from . import checkpoints, commands, images, texts
from .nodes import nodes
from .watch import Hung, Watch

FUZZERS: dict[str, Callable[[Path], Callable]] = {
    "configurations": checkpoints.configurations,
    "weights": checkpoints.weights,
    "pickles": checkpoints.pickles,
    "lists": texts.lists,
    "captions": texts.captions,
    "records": texts.records,
    "commands": commands.commands,
    "settings": images.settings_of_pngs,
    "pictures": images.pictures,
}
"""All fuzzers except the fuzzer for nodes, which needs a server."""
NODES = "nodes"
MAX_SHOWN = 5  # maximum number of crashes that are printed


@dataclass
class Counts:
    """Outcomes of a fuzzer's inputs."""

    tried: int = 0
    refused: int = 0  # with an error message
    hung: int = 0  # number of inputs that took too long
    slowest: float = 0.0  # longest duration of an input, in seconds
    crashes: list[str] = field(default_factory=list)  # description of each unexpected error
    outside: set[str] = field(default_factory=set)  # forbidden actions, such as writing outside the folder

    def failures(self) -> list[str]:
        """Return descriptions of all failures."""
        return [*self.crashes[:MAX_SHOWN], *([f"{self.hung} hung"] if self.hung else []), *sorted(self.outside)]


def run(name: str, inputs: int, seed: int, folder: Path) -> Counts:
    """Run a fuzzer with a number of inputs in a working folder, which is created."""
    temporary = folder / "temporary"  # temporary files are no forbidden writes
    temporary.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        stack.enter_context(patch.object(tempfile, "tempdir", str(temporary)))
        try_input = stack.enter_context(nodes(folder)) if name == NODES else FUZZERS[name](folder)
        return count(try_input, inputs, seed, Watch(folder))


def count(try_input: Callable, inputs: int, seed: int, watch: Watch) -> Counts:
    """Call a function with random inputs and count the outcomes; failures don't stop the run.

    Args:
        try_input: Function with hypothesis's ``data`` as its argument.
    """
    counts = Counts()
    options = {"deadline": None, "database": None, "phases": (Phase.generate,)}

    @hypothesis.seed(seed)
    @settings(max_examples=inputs, suppress_health_check=list(HealthCheck), **options)
    @given(st.data())
    def tried(data) -> None:
        counts.tried += 1
        began = time.monotonic()
        try:
            with watch.on():
                try_input(data)
        except AdtError as error:
            counts.refused += 1
            if len(str(error)) > 1500 or len(str(error).splitlines()) != 1:
                counts.crashes.append(f"input {counts.tried}: not one sentence: {str(error)[:2000]!r}")
        except Hung:
            counts.hung += 1
        except (hypothesis.errors.StopTest, hypothesis.errors.UnsatisfiedAssumption):
            raise
        except Exception:
            counts.crashes.append(f"input {counts.tried}: {traceback.format_exc(limit=-6)}")
        counts.slowest = max(counts.slowest, time.monotonic() - began)

    tried()
    counts.outside = watch.violations
    return counts
