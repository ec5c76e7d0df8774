"""Loops over the rounds of a decoding.

Each step of the iteration over a :class:`Decoding` decodes one round. These functions iterate for their callers.
"""

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
"""Maximum number of prompts in one decoding, as a multiple of the prompts that are decoded at the same time.

With a larger factor, all batch slots are in use for a larger share of the time, but the decoding needs more memory."""
WARM_UP = 3
"""Number of rounds to decode and discard before a method is timed, because the first calls are slow."""


def new_decoding(
    job: Job,
    prompts: Sequence[str],
    image_indices: Sequence[int] | None = None,
    at_once: int | None = None,
    prefix: Tensor | None = None,
    check: Check | None = None,
    seeds: Sequence[int] | None = None,
) -> Decoding:
    """Return a decoding of one image per prompt. No round is decoded yet.

    Args:
        job: Recipe and loaded models.
        prompts: Prompt of each image.
        image_indices: Index of each image among the images of its prompt (default: 0). Images with the same prompt and
            seed differ only if their indices differ.
        at_once: Maximum number of images that are decoded at the same time (default: all).
        prefix: Codebook indices [images, P] of the first P cells of each image, which are not generated (default: the
            prefix of the recipe).
        check: Cancellation callback. It is called often, and raises an exception to stop.
        seeds: Seed of each image (default: the seed of the recipe).

    Raises:
        AdtError: If a prompt is empty or too long, or settings contradict each other.
    """
    request = Request.of(job, prompts, image_indices=image_indices, seeds=seeds, prefix=prefix, check=check)
    return Decoding.of(request, at_once)


@contextmanager
def drawing(decoding: Decoding) -> Iterator[Iterator[list[int]]]:
    """Decode all images within a `with` block, and free the caches at the end of the block, also after an exception.

    Usage: `with drawing(decoding) as running: for finished in running: ...`. Call `Decoding.learn_costs` after the
    block.

    Args:
        decoding: Decoding that has not begun.

    Yields:
        An iterator with one item per round: the list of the indices of the images that the round has finished. The list
        is often empty. If the last images are finished by reading their prompts, without a round, the iterator has one
        more item for these images.
    """
    with closing(_finished(decoding)) as running:
        yield running


def rounds(decoding: Decoding) -> Generator[list[int], None, None]:
    """Decode all images like :func:`drawing`, then learn the costs of rounds.

    Args:
        decoding: Decoding that has not begun.

    Yields:
        The items of :func:`drawing`: for each round, the indices of the images that the round has finished.
    """
    with drawing(decoding) as running:
        yield from running
    decoding.learn_costs()


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
    """Return the conditions of a decoding, to store them in the metadata of an image.

    With LANTERN (relaxed acceptance), the result also contains the share of the image's tokens that were replaced.
    """
    if decoding.request.lantern is None:
        return decoding.conditions()
    rate = decoding.trace.subset([image]).report()["substitution_rate"]
    return {**decoding.conditions(), "figures": {"substitution_rate": rate}}


def decode(decoding: Decoding) -> Decoding:
    """Decode all images and return the decoding. Its ``codes`` and its ``trace`` are then complete."""
    for _ in rounds(decoding):
        pass
    return decoding


def warm_up(decoding: Decoding, count: int = WARM_UP) -> None:
    """Decode some rounds, discard the results, and learn the costs of rounds.

    Args:
        decoding: Decoding that has not begun.
        count: Number of rounds on a CPU. With CUDA graphs, all rounds are decoded, because the first round of each size
            is slow.
    """
    with closing(iter(decoding)) as running:
        for _ in islice(running, None if decoding.request.replayed else count):
            pass
    decoding.learn_costs()


def split(images: int, at_once: int, workers: int = 1, factor: int = PART_FACTOR) -> list[range]:
    """Divide images into parts. Each part becomes one decoding, so the memory of a decoding is bounded.

    For example, 20 images with `at_once=2` are divided into two parts: images 0 to 15, and images 16 to 19.

    Args:
        images: Number of images.
        at_once: Maximum number of images that are decoded at the same time. Within a part, the next image takes the
            batch slot of a finished image.
        workers: Number of workers that share the parts. Each worker gets at least one part if there are enough images.
        factor: Maximum size of a part, as a multiple of `at_once`.

    Returns:
        For each part, the indices of its images.
    """
    share = math.ceil(images / max(workers, 1))
    size = 1 if at_once == 1 else max(1, min(factor * at_once, share))
    return [range(images)[first : first + size] for first in range(0, images, size)]
