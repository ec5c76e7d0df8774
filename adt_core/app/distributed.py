"""Workers on Ray, for more than one GPU or machine. The registry's archive leaves this module out.

Each worker is a process on this or another machine. If the machines have GPUs, each worker gets one GPU.

Ray chooses the machine of each worker and distributes the tasks among the workers. If a worker fails, Ray starts a new
worker, which processes the task of the failed worker again.
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
from typing import Any

import torch
from tqdm import tqdm

from ..errors import AdtError
from .args import WorkerArgs

MAX_RESTARTS = 10
"""Maximum number of restarts of a worker. Without a limit, a worker that always fails would be restarted forever."""
OBJECT_STORE = 128 * 2**20
"""Size of Ray's object store in bytes.

The store holds at most one result per worker until this process fetches the result, so a small store is enough. Ray's
default size is a third of the main memory. In many containers, /dev/shm is too small for that."""
CONNECT_TIMEOUT = 5.0
"""Seconds to wait until the cluster accepts a connection."""
LOAD_NOTICE = 30.0
"""Seconds to wait for the next worker to load. After this time, a message explains the delay."""


@contextmanager
def start_cluster(
    build: Callable[[], Any], args: WorkerArgs, device: str, workers: int
) -> Iterator[tuple[list[Any], Callable[[Iterable[Any]], Iterable[Any]]]]:
    """Load workers on Ray. Arguments, results and errors as in :func:`.workers.start_workers`."""
    with open(os.devnull, "w", encoding="utf-8") as devnull, redirect_stdout(devnull):  # Ray prints every retry
        ray = _connect(args, device, workers)
        try:
            actors = _start_actors(ray, build, args, device, workers)
            yield _load(ray, actors), partial(_map, actors)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error  # the worker's own exception
        except ray.exceptions.RayActorError as error:
            problem = str(error).strip().splitlines()[-1].strip()
            raise AdtError("workers.failed", count=MAX_RESTARTS + 1, problem=problem) from error
        finally:
            ray.shutdown()


def _start_actors(ray: Any, build: Callable[[], Any], args: WorkerArgs, device: str, workers: int) -> list:
    resources = _resources(ray, device, workers)
    threads = int(ray.cluster_resources().get("CPU", 1)) // workers
    options = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
    remote = ray.remote(**resources, **options)(_RayActor).remote
    return [remote(build, max(1, threads), os.getcwd(), args.ray_address) for _ in range(workers)]


def _load(ray: Any, actors: list) -> list[Any]:
    """Wait until all workers are loaded, and return their `facts`. Print a message if loading takes long."""
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


def _map(actors: list, tasks: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of all tasks, in the order in which the tasks are finished.

    If no task is left for a worker, this function stops the worker immediately and so frees the worker's GPU. If
    another worker fails, its replacement may need this GPU.
    """
    from ray.util import ActorPool

    pool = ActorPool(actors)
    reported = {None}
    actors.clear()  # Ray stops an actor when its last reference is deleted
    for results, replacement in pool.map_unordered(lambda actor, task: actor.run.remote(task), list(tasks)):
        pool.pop_idle()
        if replacement not in reported:
            reported.add(replacement)
            machine = replacement[0]
            _print(f"A worker failed. A new one was started on the machine {machine}, and repeats its work.")
        yield from results


def _print(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class _RayActor:
    """Ray actor that holds a worker. It creates the worker on first use, because Ray hides errors of a constructor."""

    def __init__(self, build: Callable[[], Any], threads: int, folder: str, address: str | None):
        self._build = build
        self._threads = threads
        self._folder = folder
        self._address = address

    @cached_property
    def _worker(self) -> Any:
        torch.set_num_threads(min(self._threads, os.cpu_count() or 1))
        with suppress(OSError):  # another machine may lack the folder; this matters only if paths are relative
            os.chdir(self._folder)
        try:
            return self._build()
        except AdtError as error:
            if self._address is None:
                raise
            raise AdtError("workers.where", error=error, node=platform.node()) from error

    def load(self) -> Any:
        return self._worker.facts

    def run(self, task: Any) -> tuple[list[Any], tuple[str, int] | None]:
        """Return the results of a task, and information about a restart.

        The information about a restart is normally None. If Ray has started this process to replace a failed process,
        it is the name of the machine and the id of this process.
        """
        import ray

        is_replacement = ray.get_runtime_context().was_current_actor_reconstructed
        return list(self._worker(task)), (platform.node(), os.getpid()) if is_replacement else None


def _connect(args: WorkerArgs, device: str, workers: int) -> Any:
    """Import Ray, connect to a cluster, and return the module `ray`.

    Without `ray_address`, start a new cluster on this machine.
    """
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
        if host and port.isdecimal():  # Ray itself retries for minutes, and then exits the process
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError, ImportError, SystemExit) as error:
        raise AdtError("workers.no_cluster", address=address, reason=" ".join(str(error).split())) from error
    return ray


def _resources(ray: Any, device: str, workers: int) -> dict[str, int]:
    """Return the Ray resources that one worker needs.

    A worker needs one GPU if `device` is "cuda", or if `device` is "auto" and the cluster has GPUs. Otherwise a worker
    needs one CPU core.

    Raises:
        AdtError: If the cluster has too few GPUs or CPU cores for all workers.
    """
    resources = ray.cluster_resources()
    kind = "GPU" if device == "cuda" or device == "auto" and resources.get("GPU") else "CPU"
    if resources.get(kind, 0) < workers:
        key = "workers.too_few_gpus" if kind == "GPU" else "workers.too_few_cores"
        raise AdtError(key, workers=workers, count=f"{resources.get(kind, 0):g}")
    return {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
