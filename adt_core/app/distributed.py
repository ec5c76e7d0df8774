"""Workers on Ray, for more than one GPU or machine. The registry's archive leaves this module out.

Each worker is a process on this or another machine. If the machines have GPUs, each worker gets one GPU. Ray chooses
the machine of each worker, and starts it again if it fails.

A worker takes the next task from a queue, which is an actor, as soon as it has finished its last one. This process only
reads the results. If a worker fails, its task goes back to the queue, and the next free worker takes it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import socket
import sys
from collections import deque
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
"""Size of Ray's object store in bytes. It holds at most one result per worker until this process fetches the result.

Ray's default is a third of the main memory. In many containers, /dev/shm is too small for that."""
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
            yield _load(ray, actors), partial(_map, ray, actors)
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
    options = {"max_restarts": MAX_RESTARTS, "scheduling_strategy": "SPREAD"}
    remote = ray.remote(**resources, **options)(_RayActor).remote
    return [remote(build, max(1, threads), os.getcwd(), args.ray_address) for _ in range(workers)]


def _load(ray: Any, actors: list) -> list[Any]:
    """Wait until all workers are loaded, and return their `facts`. Print a message if loading takes long."""
    facts = loading = [_loading(actor) for actor in actors]
    while loading:
        ready, loading = ray.wait(loading, timeout=LOAD_NOTICE)
        ray.get(ready)  # raises a worker's error immediately
        if not ready:
            _print(
                f"{len(loading)} of {len(actors)} workers are not ready yet: "
                "they are loading the model, or waiting for free resources in the cluster."
            )
    return [fact for fact, _ in ray.get(facts)]


def _loading(actor: Any) -> Any:
    """Load a worker, and return a reference to its facts and its machine. If the worker fails, Ray repeats this."""
    return actor.load.options(max_task_retries=-1).remote()


def _map(ray: Any, actors: list, tasks: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of all tasks, in the order in which the tasks are finished."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    tasks = list(tasks)
    queue = ray.remote(num_cpus=0, scheduling_strategy=here)(_Queue).remote(tasks)
    working = {actor.work.remote(queue, number): number for number, actor in enumerate(actors)}
    restarting: dict[Any, int] = {}
    results = queue.results.remote()
    left = len(tasks)
    while left:
        for ready in ray.wait([results, *working, *restarting])[0]:
            if ready == results:
                found = ray.get(results)
                left -= len(found)
                results = queue.results.remote()
                for finished in found:
                    yield from finished
            elif ready in restarting:
                _, machine = ray.get(ready)
                number = restarting.pop(ready)
                _print(f"A worker failed. A new one was started on the machine {machine}.")
                working[actors[number].work.remote(queue, number)] = number
            else:
                number = working.pop(ready)
                try:
                    ray.get(ready)
                except ray.exceptions.RayTaskError:
                    raise
                except ray.exceptions.RayError:  # the process or its machine has failed
                    queue.give_back.remote(number)
                    restarting[_loading(actors[number])] = number


class _Queue:
    """Ray actor with the tasks that wait for a worker, and the results that wait for :func:`_map`."""

    def __init__(self, tasks: list[Any]):
        self._waiting = deque(tasks)
        self._taken: dict[int, Any] = {}  # by the number of the worker
        self._results: list[list[Any]] = []
        self._changed = asyncio.Condition()

    async def take(self, worker: int, results: list[Any] | None) -> list[Any]:
        """Store the results of a worker's last task, or None, and return its next task in a list. [] ends the worker.

        While other workers have tasks, an idle worker waits: if one of them fails, its task needs a worker.
        """
        async with self._changed:
            if results is not None:
                del self._taken[worker]
                self._results.append(results)
                self._changed.notify_all()
            await self._changed.wait_for(lambda: self._waiting or not self._taken)
            if not self._waiting:
                return []
            self._taken[worker] = self._waiting.popleft()
            return [self._taken[worker]]

    async def give_back(self, worker: int) -> None:
        """Return the task of a failed worker to the queue."""
        async with self._changed:
            if worker in self._taken:
                self._waiting.appendleft(self._taken.pop(worker))
                self._changed.notify_all()

    async def results(self) -> list[list[Any]]:
        """Wait for results, and return those of each finished task once."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._results)
            found = self._results
            self._results = []
            return found


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

    def load(self) -> tuple[Any, str]:
        """Return the worker's facts, and the name of its machine."""
        return self._worker.facts, platform.node()

    def work(self, queue: Any, number: int) -> None:
        """Take tasks from a queue until no task is left, as the worker with this number."""
        import ray

        results = None
        while task := ray.get(queue.take.remote(number, results)):
            results = list(self._worker(task[0]))


def _connect(args: WorkerArgs, device: str, workers: int) -> Any:
    """Import Ray, connect to a cluster or start one on this machine, and return the module `ray`."""
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
    """Return the Ray resources that one worker needs: a GPU if it may use one and the cluster has any, else a CPU core.

    Raises:
        AdtError: If the cluster has too few of them for all workers.
    """
    resources = ray.cluster_resources()
    kind = "GPU" if device == "cuda" or device == "auto" and resources.get("GPU") else "CPU"
    if resources.get(kind, 0) < workers:
        key = "workers.too_few_gpus" if kind == "GPU" else "workers.too_few_cores"
        raise AdtError(key, workers=workers, count=f"{resources.get(kind, 0):g}")
    return {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
