"""Engines in this process or on Ray, for more than one GPU or machine: ``--workers`` and ``--ray-address``.

An engine takes a number and yields what comes of it. On Ray, each engine lives in a process of its own, on this machine
or another, with a GPU to itself where there are any. Ray places the engines and hands out the numbers. It starts an
engine that was lost anew, and gives it the number that it was at.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol

import torch
from tqdm import tqdm

from ..errors import AdtError, pip_install
from .args import WorkerArgs

RESTARTS = 10
"""How often an engine is started anew. Bounded, since one that lacks memory, or fails at a prompt, always goes down."""
OBJECT_STORE = 128 * 2**20
"""Bytes. It holds one result per engine until that is fetched. Ray would take a third of the memory, which is more than
/dev/shm has in many a container."""
PATIENCE = 5.0
"""Seconds in which a cluster has to answer."""
LONG = 30.0
"""Seconds without a newly loaded engine after which the wait is explained."""


class Worker(Protocol):
    """facts: what it says of itself when it is loaded."""

    facts: Any

    def __call__(self, number: int, /) -> Iterable[Any]: ...


def check_args(order: WorkerArgs, prompts: object) -> None:
    """Raises AdtError if there is no list of prompts to spread, and for a missing Ray."""
    if order.wanted and not prompts:
        raise AdtError("`workers` and `ray_address` need a list of prompts; give a file with `prompts`.")
    if order.wanted and importlib.util.find_spec("ray") is None:
        raise AdtError(f"`workers` and `ray_address` need Ray, which is not installed; run {pip_install('ray')}")


@contextmanager
def start_workers(
    build: Callable[[], Worker], order: WorkerArgs, device: str, count: int
) -> Iterator[tuple[list[Any], Callable[[Iterable[int]], Iterable[Any]]]]:
    """Load the engines that the order asks for, at most one for each of the ``count`` numbers.

    Yields the facts of every engine, and a function that maps numbers to all that the engines yield for them. On Ray
    the function may be called once, and gives what is finished first. build: makes an engine; it is sent to every
    process. Raises what ``build`` and the engines raise, and AdtError if no cluster is at ``--ray-address``, if it is
    too small, or if an engine is lost again and again. In the end the engines are stopped, and with them a cluster that
    was started here.
    """
    if not order.wanted:
        engine = build()
        yield [engine.facts], lambda numbers: chain.from_iterable(map(engine, numbers))
        return
    workers = min(order.workers, count)
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
    ):  # Ray prints pages about what it tries again
        ray = _connect(order, device, workers)
        try:
            needs, threads = _needs(ray, device, workers), int(ray.cluster_resources().get("CPU", 1)) // workers
            remote = ray.remote(**needs, max_restarts=RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")
            worker = partial(remote(_RayActor).remote, build, max(1, threads), os.getcwd(), order.ray_address)
            actors = [worker() for _ in range(workers)]
            yield _load(ray, actors), partial(_map, actors)
        except ray.exceptions.RayTaskError as error:  # an engine's own error comes out as it was raised there
            raise error.cause from error
        except ray.exceptions.RayActorError as error:
            problem = str(error).strip().splitlines()[-1].strip()
            raise AdtError(
                f"`workers`: an engine failed {RESTARTS + 1} times, or could not be started ({problem}); "
                "check the free memory, and that every machine has this pack. Finished results were kept."
            ) from error
        finally:
            ray.shutdown()


def _load(ray: Any, actors: list) -> list[Any]:
    """The facts of all engines, once they are loaded. Others may use the cluster, so a long wait is explained."""
    facts = [actor.load.remote() for actor in actors]
    loading = facts
    while loading:
        ready, loading = ray.wait(loading, timeout=LONG)
        ray.get(ready)  # raises an engine's error at once
        if not ready:
            _say(
                f"{len(loading)} of {len(actors)} engines are not ready yet: "
                "they are loading the model, or waiting for free resources in the cluster."
            )
    return ray.get(facts)


def _map(actors: list, numbers: Iterable[int]) -> Iterator[Any]:
    """All that engines yield for the numbers.

    An engine for which no number is left is ended at once: one that was lost may need its place to start again.
    """
    from ray.util import ActorPool

    pool = ActorPool(actors)
    reported = {None}
    actors.clear()  # an engine lives as long as there is a reference to it
    for results, successor in pool.map_unordered(lambda actor, number: actor.run.remote(number), list(numbers)):
        pool.pop_idle()
        if successor not in reported:
            reported.add(successor)
            machine = successor[0]
            _say(f"An engine failed. A new one was started on the machine {machine}, and repeats its prompt.")
        yield from results


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class _RayActor:
    """Runs in a process of its own. It makes the engine when first asked: Ray hides the errors of a constructor."""

    def __init__(self, build: Callable[[], Worker], threads: int, folder: str, address: str | None):
        self._build, self._threads = build, threads
        self._folder, self._address = folder, address

    @cached_property
    def _engine(self) -> Worker:
        torch.set_num_threads(min(self._threads, os.cpu_count() or 1))
        with suppress(OSError):  # another machine may lack the folder, which only relative paths need
            os.chdir(self._folder)
        try:
            return self._build()
        except AdtError as error:
            if self._address is None:
                raise
            where = f"On the machine {platform.node()}: the paths of weights and images must exist on every machine."
            raise AdtError(f"{error.template} ({where})") from error

    def load(self) -> Any:
        return self._engine.facts

    def run(self, number: int) -> tuple[list[Any], tuple[str, int] | None]:
        """What comes of a number; and this machine and process if the process replaces one that was lost."""
        import ray

        replaces = ray.get_runtime_context().was_current_actor_reconstructed
        return list(self._engine(number)), (platform.node(), os.getpid()) if replaces else None


def _connect(order: WorkerArgs, device: str, workers: int) -> Any:
    """The module ``ray``, connected to the cluster at ``--ray-address``, or to one that is started here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address, quiet = order.ray_address, {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:  # these count only before the import
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listen to this machine alone, on Linux too
        os.environ.setdefault("RAY_worker_niceness", "0")  # as urgent as the command itself; Ray would take 15
    ray: Any = importlib.import_module("ray")
    if address is None:
        gpus, cores = torch.cuda.device_count() if device != "cpu" else 0, torch.get_num_threads()
        local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        ray.init("local", num_cpus=max(workers, cores), num_gpus=gpus, **local, **quiet)
        return ray
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself would try for minutes, and then end the process
            socket.create_connection((host, int(port)), PATIENCE).close()
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError, ImportError, SystemExit) as error:
        raise AdtError(
            f"`ray_address`: no cluster of this Ray version answers at '{address}' ({' '.join(str(error).split())}); "
            "start one with 'ray start --head', or remove the option."
        ) from error
    return ray


def _needs(ray: Any, device: str, workers: int) -> dict[str, int]:
    """What one engine takes of the cluster: a GPU if there are any and they may be used, else a core.

    Raises AdtError if there is too little for all.
    """
    resources = ray.cluster_resources()
    kind = "GPU" if device == "cuda" or device == "auto" and resources.get("GPU") else "CPU"
    if resources.get(kind, 0) < workers:
        raise AdtError(
            f"`workers` is {workers}, and each needs one {kind}, but Ray has only {resources.get(kind, 0):g}; "
            f"use fewer workers or add machines{', or choose `device` cpu' if kind == 'GPU' else ''}."
        )
    return {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
