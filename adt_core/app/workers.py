"""Workers, which compute the parts of a run: one in this process, or several with `--workers` and `--ray-address`.

The input of a worker is a task, such as the index of a prompt or a list of images. Its output is the results of this
task. With Ray, :mod:`.distributed` starts the workers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

from ..errors import AdtError, pip_install
from .args import WorkerArgs


class DistributedWorker(Protocol):
    """Object that holds loaded models and computes the results of a task. `facts` has information about the models."""

    facts: Any

    def __call__(self, task: Any, /) -> Iterable[Any]: ...


def check_args(args: WorkerArgs, prompts: object) -> None:
    """Raise AdtError if workers on Ray have no file of prompts to share, or Ray is not installed."""
    if not args.uses_ray:
        return
    if not prompts:
        raise AdtError("workers.without_list")
    if importlib.util.find_spec(f"{__package__}.distributed") is None:
        raise AdtError("workers.left_out")
    if importlib.util.find_spec("ray") is None:
        raise AdtError("workers.no_ray", command=pip_install("ray"))


@contextmanager
def start_workers(
    build: Callable[[], DistributedWorker], args: WorkerArgs, device: str, count: int
) -> Iterator[tuple[list[Any], Callable[[Iterable[Any]], Iterable[Any]]]]:
    """Load the workers. At the end of the block, stop the workers. Also stop the Ray cluster if it was started here.

    Args:
        build: Function that creates a worker. Ray pickles the function and sends it to every process.
        device: "auto", "cpu" or "cuda".
        count: Maximum number of tasks. At most `count` workers are started.

    Yields:
        A list with the `facts` of every worker, and a function. The function takes a list of all tasks and iterates
        over the results. Without Ray, the results have the order of the tasks. With Ray, the results of the task that
        is finished first come first, and the function can be called only once.

    Raises:
        AdtError: If no cluster answers at `ray_address`, if the cluster is too small, or if a worker fails too often.
    """
    if not args.uses_ray:
        worker = build()
        yield [worker.facts], lambda tasks: chain.from_iterable(map(worker, tasks))
        return
    from . import distributed

    with distributed.start_cluster(build, args, device, min(args.workers, count)) as started:
        yield started
