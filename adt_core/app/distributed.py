"""Worker processes for more than one GPU or machine: `--workers` and `--ray-address`.

A worker maps a number, such as the index of a prompt, to results. Without Ray, one worker runs in this process. With
Ray, each worker is a process on this machine or another, with its own GPU if there are any. Ray places the workers,
distributes the numbers, restarts a lost worker, and repeats the number that it was processing.
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

MAX_RESTARTS = 10
"""Restarts of a worker. Bounded, because a worker may fail every time, for example if it lacks memory."""
OBJECT_STORE = 128 * 2**20
"""Bytes of Ray's object store, which holds one result per worker until it is fetched. Ray's default, a third of the
memory, is more than /dev/shm has in many containers."""
CONNECT_TIMEOUT = 5.0
"""Seconds in which a cluster must answer."""
LOAD_NOTICE = 30.0
"""Seconds without a newly loaded worker after which a message explains the delay."""


class DistributedWorker(Protocol):
    """Loaded models that process numbers.

    Attributes:
        facts: Information about the worker that is available after loading.
    """

    facts: Any

    def __call__(self, number: int, /) -> Iterable[Any]: ...


def check_args(args: WorkerArgs, prompts: object) -> None:
    """Check that workers have prompts to share and that Ray is installed.

    Args:
        args: Worker processes.
        prompts: File of prompts, if any.

    Raises:
        AdtError: If one of both is missing.
    """
    if args.uses_ray and not prompts:
        raise AdtError("`workers` and `ray_address` need a list of prompts; give a file with `prompts`.")
    if args.uses_ray and importlib.util.find_spec("ray") is None:
        raise AdtError(f"`workers` and `ray_address` need Ray, which is not installed; run {pip_install('ray')}")


@contextmanager
def start_workers(
    build: Callable[[], DistributedWorker], args: WorkerArgs, device: str, count: int
) -> Iterator[tuple[list[Any], Callable[[Iterable[int]], Iterable[Any]]]]:
    """Load the workers, and stop them at the end of the block, together with a cluster that was started here.

    Args:
        build: Creates a worker. It is pickled and sent to every process.
        args: Number of workers and address of the cluster.
        device: "auto", "cpu" or "cuda".
        count: Number of numbers to process; more workers than that are not started.

    Yields:
        The facts of every worker, and a function that maps numbers to the results of all workers. With Ray, this
        function may be called once and returns results in the order in which they are finished.

    Raises:
        AdtError: If no cluster answers at `ray_address`, if it is too small, or if a worker fails too often.
    """
    if not args.uses_ray:
        worker = build()
        yield [worker.facts], lambda numbers: chain.from_iterable(map(worker, numbers))
        return
    workers = min(args.workers, count)
    with open(os.devnull, "w", encoding="utf-8") as devnull, redirect_stdout(devnull):  # Ray logs every retry
        ray = _connect(args, device, workers)
        try:
            actors = _start_actors(ray, build, args, device, workers)
            yield _load(ray, actors), partial(_map, actors)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # the worker's own exception
        except ray.exceptions.RayActorError as error:
            problem = str(error).strip().splitlines()[-1].strip()
            raise AdtError(
                f"`workers`: a worker failed {MAX_RESTARTS + 1} times, or could not be started ({problem}); "
                "check the free memory, and that every machine has this pack. Finished results were kept."
            ) from error
        finally:
            ray.shutdown()


def _start_actors(
    ray: Any, build: Callable[[], DistributedWorker], args: WorkerArgs, device: str, workers: int
) -> list:
    resources = _resources(ray, device, workers)
    threads = int(ray.cluster_resources().get("CPU", 1)) // workers
    options = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
    remote = ray.remote(**resources, **options)(_RayActor).remote
    return [remote(build, max(1, threads), os.getcwd(), args.ray_address) for _ in range(workers)]


def _load(ray: Any, actors: list) -> list[Any]:
    """Return the facts of all workers after they are loaded. A message explains a long wait."""
    facts = [actor.load.remote() for actor in actors]
    loading = facts
    while loading:
        ready, loading = ray.wait(loading, timeout=LOAD_NOTICE)
        ray.get(ready)  # raises a worker's error immediately
        if not ready:
            _print(
                f"{len(loading)} of {len(actors)} workers are not ready yet: "
                "they are loading the model, or waiting for free resources in the cluster."
            )
    return ray.get(facts)


def _map(actors: list, numbers: Iterable[int]) -> Iterator[Any]:
    """Yield the results of all numbers.

    A worker for which no number is left is stopped immediately, because the replacement of a lost worker may need its
    GPU.
    """
    from ray.util import ActorPool

    pool = ActorPool(actors)
    reported = {None}
    actors.clear()  # an actor lives until its last reference is deleted
    for results, replacement in pool.map_unordered(lambda actor, number: actor.run.remote(number), list(numbers)):
        pool.pop_idle()
        if replacement not in reported:
            reported.add(replacement)
            machine = replacement[0]
            _print(f"A worker failed. A new one was started on the machine {machine}, and repeats its prompt.")
        yield from results


def _print(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class _RayActor:
    """Process of a worker. The worker is created on first use, because Ray hides exceptions of a constructor."""

    def __init__(self, build: Callable[[], DistributedWorker], threads: int, folder: str, address: str | None):
        self._build = build
        self._threads = threads
        self._folder = folder
        self._address = address

    @cached_property
    def _worker(self) -> DistributedWorker:
        torch.set_num_threads(min(self._threads, os.cpu_count() or 1))
        with suppress(OSError):  # only relative paths need the folder, and another machine may lack it
            os.chdir(self._folder)
        try:
            return self._build()
        except AdtError as error:
            if self._address is None:
                raise
            where = f"On the machine {platform.node()}: the paths of weights and images must exist on every machine."
            raise AdtError(f"{error.template} ({where})") from error

    def load(self) -> Any:
        return self._worker.facts

    def run(self, number: int) -> tuple[list[Any], tuple[str, int] | None]:
        """Return the results of a number, and the machine and process id if this process replaces a lost one."""
        import ray

        is_replacement = ray.get_runtime_context().was_current_actor_reconstructed
        return list(self._worker(number)), (platform.node(), os.getpid()) if is_replacement else None


def _connect(args: WorkerArgs, device: str, workers: int) -> Any:
    """Return the module `ray`, connected to the cluster at `ray_address` or to a new one on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address = args.ray_address
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:  # Ray reads these variables when it is imported
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listen on the loopback address only
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 slows the workers down
    ray: Any = importlib.import_module("ray")
    if address is None:
        gpus = torch.cuda.device_count() if device != "cpu" else 0
        cores = max(workers, torch.get_num_threads())
        local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        ray.init("local", num_cpus=cores, num_gpus=gpus, **local, **quiet)
        return ray
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray retries for minutes, and then exits the process
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError, ImportError, SystemExit) as error:
        raise AdtError(
            f"`ray_address`: no cluster of this Ray version answers at '{address}' ({' '.join(str(error).split())}); "
            "start one with 'ray start --head', or remove the option."
        ) from error
    return ray


def _resources(ray: Any, device: str, workers: int) -> dict[str, int]:
    """Return the resources of one worker: a GPU if there are any and `device` allows them, else a CPU core.

    Raises:
        AdtError: If the cluster has too little for all workers.
    """
    resources = ray.cluster_resources()
    kind = "GPU" if device == "cuda" or device == "auto" and resources.get("GPU") else "CPU"
    if resources.get(kind, 0) < workers:
        raise AdtError(
            f"`workers` is {workers}, and each needs one {kind}, but Ray has only {resources.get(kind, 0):g}; "
            f"use fewer workers or add machines{', or choose `device` cpu' if kind == 'GPU' else ''}."
        )
    return {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
