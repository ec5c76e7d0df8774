"""What a decoding may take of the machine's own memory. A system that runs out of it kills the process, without a word.

A GPU says so itself: then fewer images are drawn at once (:mod:`.decoding`).
"""

from __future__ import annotations

import psutil

from ..errors import AdtError
from .task import Task

MEMORY_SHARE = 0.8
"""Share of the machine's memory for weights, caches, trees and noise together."""


def check_room(task: Task, at_once: int) -> None:
    """AdtError if so many images at once would take too much."""
    if said := lack_of_room(task, at_once):
        raise AdtError(said)


def lack_of_room(task: Task, at_once: int) -> str:
    """What is wrong if the weights are on the CPU, and so many images at once take too much beside them; else ""."""
    decoder = task.target.decoder
    if decoder.embedding.device.type != "cpu":
        return ""
    weights = sum(part.numel() * part.element_size() for part in decoder.parameters())
    work, total = task.memory_required(at_once), psutil.virtual_memory().total
    if weights + work <= MEMORY_SHARE * total:
        return ""
    images = f"{at_once} images" if at_once > 1 else "one image"
    needed, beside, there = (f"{size / 2**30:.3g} GB" for size in (work, weights, total))
    return (
        f"{images} at once would take {needed} beside the {beside} of {task.target.name}, and of this machine's "
        f"{there} {MEMORY_SHARE:.0%} may be used; draw fewer at once, or take smaller trees or a smaller model."
    )
