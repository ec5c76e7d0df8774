"""Loops over a decoding: only this module iterates over :class:`Decoding`."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice

from torch import Tensor

from ..engine.decoding import Decoding
from ..engine.job import Job
from ..engine.request import Request
from ..errors import Check

PART_FACTOR = 8
"""Prompts of one decoding per active image: enough to refill slots, few enough for the memory."""
WARM_UP = 3
"""Rounds that are decoded and discarded before a method is timed, because the first calls are slow."""


def new_decoding(
    job: Job,
    prompts: Sequence[str],
    image_indices: Sequence[int] | None = None,
    at_once: int | None = None,
    prefix: Tensor | None = None,
    check: Check | None = None,
    seeds: Sequence[int] | None = None,
) -> Decoding:
    """Make a decoding of one image per prompt, before its first round.

    Args:
        job: Recipe and loaded models.
        prompts: Text of each image.
        image_indices: Index of each image among the images of its prompt (default: 0).
        at_once: Images that are decoded at the same time (default: all).
        prefix: Codes [images, P] that each image begins with (default: the recipe's).
        check: Called often; may raise an exception to cancel.
        seeds: Seed of each image (default: the recipe's).

    Raises:
        AdtError: If a prompt is empty or too long, or settings contradict each other.
    """
    request = Request.of(job, prompts, image_indices=image_indices, seeds=seeds, prefix=prefix, check=check)
    return Decoding.of(request, at_once)


@contextmanager
def drawing(decoding: Decoding) -> Iterator[Iterator[list[int]]]:
    """Decode to the end within a block, which frees the caches also after an exception.

    Usage: `with drawing(decoding) as running: for finished in running: ...`. Call `Decoding.measure_costs` after the
    block.

    Args:
        decoding: Decoding that has not begun.

    Yields:
        An iterator that gives, after each round, the indices of the images that it finished, which are often none. One
        more item follows if the last images were finished by reading their prompts.
    """
    with closing(_finished(decoding)) as running:
        yield running


def rounds(decoding: Decoding) -> Generator[list[int], None, None]:
    """Decode to the end like :func:`drawing`, then measure costs; for a loop that does nothing else.

    Args:
        decoding: Decoding that has not begun.

    Yields:
        After each round, the indices of the images that it finished.
    """
    with drawing(decoding) as running:
        yield from running
    decoding.measure_costs()


def _finished(decoding: Decoding) -> Generator[list[int], None, None]:
    waiting = list(range(decoding.images))

    def newly() -> list[int]:
        finished = (decoding.codes[:, -1] >= 0).tolist()
        done = [image for image in waiting if finished[image]]
        waiting[:] = [image for image in waiting if not finished[image]]
        return done

    for _ in decoding:
        yield newly()
    if waiting:
        yield newly()


def conditions(decoding: Decoding, image: int) -> dict:
    """Return the decoding's conditions for an image's metadata, under LANTERN with the share of replaced tokens."""
    if decoding.request.lantern is None:
        return decoding.conditions()
    rate = decoding.trace.subset([image]).report()["substitution_rate"]
    return {**decoding.conditions(), "figures": {"substitution_rate": rate}}


def decode(decoding: Decoding) -> Decoding:
    """Decode to the end, and return the decoding, whose ``codes`` and ``trace`` are then complete."""
    for _ in rounds(decoding):
        pass
    return decoding


def warm_up(decoding: Decoding, count: int = WARM_UP) -> None:
    """Decode rounds and discard them, then measure costs if they are unknown.

    Args:
        decoding: Decoding that has not begun.
        count: Number of rounds on a CPU. On a GPU all rounds are decoded, because each size is slow the first time.
    """
    with closing(iter(decoding)) as running:
        for _ in islice(running, None if decoding.request.replayed else count):
            pass
    decoding.measure_costs()


def split(prompts: int, at_once: int, together: int = 1, workers: int = 1) -> list[range]:
    """Divide prompts into the parts of one decoding each, so that memory stays bounded.

    Args:
        prompts: Number of prompts.
        at_once: Images that are decoded at the same time; the slot of a finished image is reused within a part.
        together: Images of a prompt.
        workers: Workers that share the parts; each gets at least one if there are enough prompts.

    Returns:
        Indices of the prompts of each part.
    """
    active = math.ceil(at_once / together)  # prompts that are decoded at the same time
    size = active if active == 1 else max(active, min(PART_FACTOR * active, math.ceil(prompts / workers)))
    return [range(prompts)[first : first + size] for first in range(0, prompts, size)]
