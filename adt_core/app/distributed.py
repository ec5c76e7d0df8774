"""Engines on Ray, for more than one GPU or machine: ``--workers`` and ``--ray-address``.

An engine takes a number and returns what came of it: of a prompt, or of a few that it draws in one go. Each engine
lives in a process of its own, on this machine or another, with a GPU to itself where there are any. Ray places the
engines and hands out the numbers. It starts an engine that was lost anew, and gives it the number that it was at.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cached_property
from typing import Any

import torch
from tqdm import tqdm

from ..errors import AdtError

RESTARTS = 10
"""How often an engine is started anew. Bounded, since one that lacks memory, or fails at a prompt, always goes down."""
OBJECT_STORE = 128 * 2**20
"""Bytes. It holds one result per engine until that is fetched. Ray would take a third of the memory, which is more than
/dev/shm has in many a container."""
PATIENCE = 5.0
"""Seconds in which a cluster has to answer."""
LONG = 30.0
"""Seconds after which a wait for engines is explained."""

Engine = Callable[[int], Any]


def wanted(options: argparse.Namespace) -> bool:
    """Do the options ask for Ray? One engine on this machine does without."""
    return options.workers > 1 or options.ray_address is not None


def check(options: argparse.Namespace) -> None:
    """Raises AdtError for options that make no sense, and for a missing Ray."""
    if options.workers < 1:
        raise AdtError(f"--workers is {options.workers}; it must be 1 or more.")
    if wanted(options) and not options.prompts:
        raise AdtError(
            "--workers and --ray-address spread a list of prompts over engines; give a file of them with --prompts."
        )
    if wanted(options) and importlib.util.find_spec("ray") is None:
        raise AdtError(
            "--workers and --ray-address need Ray, which is not installed; "
            'pip install "adt-tree[ray]", or pip install ray.'
        )


@contextmanager
def engines(build: Callable[[], Engine], options: argparse.Namespace, count: int) -> Iterator[Engines]:
    """As many engines as the options ask for, though no more than ``count``, the numbers there are. All are loaded.

    build: makes an engine; it is sent to every process. Raises AdtError if no cluster is at ``--ray-address`` or it is
    too small, and what ``build`` raises. In the end a cluster that was started here is stopped; on another one, only
    the engines are.
    """
    workers, elsewhere = min(options.workers, count), options.ray_address is not None
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # Ray prints pages about what it tries again
        ray = _connect(options, workers)
        try:
            with _plain_errors():
                needs, cores = _needs(options, workers), int(ray.cluster_resources().get("CPU", 1))
                remote = ray.remote(**needs, max_restarts=RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")
                make = remote(_Worker).remote
                actors = [make(build, max(1, cores // workers), os.getcwd(), elsewhere) for _ in range(workers)]
                _wait_for(actors)
            yield Engines(actors)
        finally:
            ray.shutdown()


def _wait_for(actors: list) -> None:
    """Until all engines are loaded. Others may use the cluster, so a long wait is explained."""
    import ray

    loading, explain_at = [actor.load.remote() for actor in actors], time.monotonic() + LONG
    while loading:
        ready, loading = ray.wait(loading, timeout=1.0)
        ray.get(ready)  # raises an engine's error at once
        if loading and time.monotonic() > explain_at:
            explain_at = float("inf")
            _say(
                f"{len(loading)} of {len(actors)} engines are not ready yet: "
                "they are loading the model, or waiting for a place in the cluster."
            )


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class Engines:
    """Engines that are ready."""

    def __init__(self, actors: list):
        self._actors = actors

    def ask(self, name: str) -> list:
        """An attribute of every engine."""
        import ray

        with _plain_errors():
            return ray.get([actor.attribute.remote(name) for actor in self._actors])

    def map(self, numbers: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Every number with what an engine returned for it, in the order in which they finish. To be called once.

        An engine for which no number is left is ended at once: one that was lost may need its place to start again.
        """
        from ray.util import ActorPool

        pool = ActorPool(self._actors)
        successors: set[tuple[str, int] | None] = {None}
        self._actors.clear()  # an engine lives as long as there is a reference to it
        with _plain_errors():
            for number, result, successor in pool.map_unordered(
                lambda actor, one: actor.run.remote(one), list(numbers)
            ):
                pool.pop_idle()
                if successor not in successors:
                    successors.add(successor)
                    _say(
                        "An engine was lost. Another one was started on the machine "
                        f"{successor[0]}, and draws its prompt again."
                    )
                yield number, result


class _Worker:
    """Runs in a process of its own. It makes the engine when first asked: Ray hides the errors of a constructor."""

    def __init__(self, build: Callable[[], Engine], threads: int, folder: str, elsewhere: bool):
        self._build, self._threads, self._folder, self._elsewhere = build, threads, folder, elsewhere

    @cached_property
    def _engine(self) -> Engine:
        torch.set_num_threads(self._threads)
        with suppress(OSError):  # another machine may lack the folder, which only relative paths need
            os.chdir(self._folder)
        try:
            return self._build()
        except AdtError as error:
            if not self._elsewhere:
                raise
            where = f"On the machine {platform.node()}: the paths of weights and pictures must hold on every machine."
            raise AdtError(f"{error} ({where})") from error

    def load(self) -> None:
        self._engine  # noqa: B018

    def attribute(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, number: int) -> tuple[int, Any, tuple[str, int] | None]:
        """A number and what came of it; and this machine and process if the process replaces one that was lost."""
        import ray

        replaces = ray.get_runtime_context().was_current_actor_reconstructed
        return number, self._engine(number), (platform.node(), os.getpid()) if replaces else None


def _connect(options: argparse.Namespace, workers: int) -> Any:
    """The module ``ray``, connected to the cluster at ``--ray-address``, or to one that is started here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address, quiet = options.ray_address, {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:  # these count only before the import
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listen to this machine alone, on Linux too
        os.environ.setdefault("RAY_worker_niceness", "0")  # as urgent as the command itself; Ray would take 15
    ray: Any = importlib.import_module("ray")
    if address is None:
        gpus, cores = torch.cuda.device_count() if options.device != "cpu" else 0, torch.get_num_threads()
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
            f"--ray-address: no cluster of this Ray answers at '{address}' ({' '.join(str(error).split())}); "
            "start one with 'ray start --head', or leave the option out."
        ) from error
    return ray


def _needs(options: argparse.Namespace, workers: int) -> dict[str, int]:
    """What one engine takes of the cluster: a GPU if there are any and they may be used, else a core.

    Raises AdtError if there is too little for all.
    """
    import ray

    found = ray.cluster_resources()
    kind = "GPU" if options.device == "cuda" or options.device == "auto" and found.get("GPU") else "CPU"
    if found.get(kind, 0) < workers:
        raise AdtError(
            f"--workers is {workers}, and each engine takes one {kind}, of which Ray finds {found.get(kind, 0):g}; "
            f"ask for fewer engines or add machines{', or choose --device cpu' if kind == 'GPU' else ''}."
        )
    return {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of engines come out as they were raised there."""
    from ray.exceptions import RayActorError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise error.cause from error
    except RayActorError as error:
        said = str(error).strip().splitlines()[-1].strip()
        raise AdtError(
            f"--workers: an engine was lost {RESTARTS + 1} times, or can't be started at all ({said}); "
            "too little memory is a frequent reason, and a machine without this pack another. "
            "What had been finished is kept."
        ) from error
