"""Runs a fuzzer and counts what came of its inputs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import chdir, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adt_core.errors import AdtError

from . import checkpoints, commands, pictures, texts
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
    "settings": pictures.settings_of_pngs,
    "pictures": pictures.pictures,
}
"""All but that of the nodes, which needs a server."""
NODES = "nodes"
MOST_SHOWN = 5
"""Failures that are shown in full."""


@dataclass
class Figures:
    """What came of a fuzzer's inputs. refused: ended in a sentence. outside: what was done beyond the folder."""

    tried: int = 0
    refused: int = 0
    hung: int = 0
    slowest: float = 0.0
    crashes: list[str] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)

    def failures(self) -> list[str]:
        """Everything that must not be."""
        return [*self.crashes[:MOST_SHOWN], *([f"{self.hung} hung"] if self.hung else []), *sorted(self.outside)]


def run(name: str, inputs: int, seed: int, folder: Path) -> Figures:
    """Try so many inputs, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder), nodes(folder) if name == NODES else nullcontext(FUZZERS[name](folder)) as one:
        return count(one, inputs, seed, Watch(folder))


def count(one: Callable, inputs: int, seed: int, watch: Watch) -> Figures:
    """Call ``one`` with hypothesis' ``data`` so many times. A failure is counted, and the next input tried."""
    figures = Figures()
    more = {"deadline": None, "database": None, "phases": (Phase.generate,)}

    @hypothesis.seed(seed)
    @settings(max_examples=inputs, suppress_health_check=list(HealthCheck), **more)
    @given(st.data())
    def tried(data) -> None:
        figures.tried += 1
        began = time.monotonic()
        try:
            with watch.on():
                one(data)
        except AdtError as error:
            figures.refused += 1
            if len(str(error)) > 1500 or len(str(error).splitlines()) != 1:
                figures.crashes.append(f"input {figures.tried}: no sentence: {str(error)[:2000]!r}")
        except Hung:
            figures.hung += 1
        except (hypothesis.errors.StopTest, hypothesis.errors.UnsatisfiedAssumption):
            raise
        except Exception:
            figures.crashes.append(f"input {figures.tried}: {traceback.format_exc(limit=-6)}")
        figures.slowest = max(figures.slowest, time.monotonic() - began)

    tried()
    figures.outside = watch.seen
    return figures
