"""Several engines on Ray, for more than one GPU or machine: ``--workers`` and ``--ray-address`` of ``generate`` and ``benchmark``.

An engine is anything that takes the number of a prompt, or of a few that it draws in one go, and returns what came of it. Each lives in a process
of its own, on this machine or another, with a GPU to itself where there are any. Ray places the engines, hands out the prompts, starts an engine
anew that was lost, and gives it the prompt that it was at.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cached_property
from typing import Any

import torch
from tqdm import tqdm

from ..errors import AdtError

RESTARTS = 10
"""How often an engine is started anew. Bounded, so that one that always goes down, for want of memory or over a prompt, does not go round for ever."""
OBJECT_STORE = 128 * 2**20
"""Bytes. It holds one result per engine until it is fetched; Ray's own choice, a third of the memory, is more than /dev/shm has in many a container."""
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
            '--workers and --ray-address need Ray, which is not installed; pip install "adt-tree[ray]", or pip install ray.'
        )


@contextmanager
def engines(build: Callable[[], Engine], options: argparse.Namespace, count: int) -> Iterator[Engines]:
    """As many engines as the options ask for, though no more than the ``count`` of prompts, all of them loaded.

    build: makes an engine; it is sent to every process. Raises AdtError if there is no cluster at ``--ray-address``, if it is too small, and what
    ``build`` raises. At the end the cluster that was started is stopped, or the engines on another one.
    """
    workers = min(options.workers, count)
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
    ):  # Ray prints pages about what it lost and tries again, logs included
        ray = _connect(options, workers)
        try:
            with _plain_errors():
                needs, cores = _needs(options, workers), int(ray.cluster_resources().get("CPU", 1))
                actor = ray.remote(**needs, max_restarts=RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")(
                    _Worker
                )
                actors = [
                    actor.remote(build, max(1, cores // workers), os.getcwd(), options.ray_address is not None)
                    for _ in range(workers)
                ]
                _wait_for(actors)
            yield Engines(actors)
        finally:
            ray.shutdown()


def _wait_for(actors: list) -> None:
    """Until all engines are loaded. Others may have taken their places in the cluster, so a long wait is explained."""
    import ray

    loading, started, told = [actor.load.remote() for actor in actors], time.monotonic(), False
    while loading:
        ready, loading = ray.wait(loading, timeout=1.0)
        ray.get(ready)  # an error, as soon as there is one
        if loading and not told and time.monotonic() - started > LONG:
            tqdm.write(
                f"{len(loading)} of {len(actors)} engines are not ready yet: they are loading the model, or waiting for a place in the cluster.",
                file=sys.stderr,
            )
            told = True


class Engines:
    """Engines that are ready."""

    def __init__(self, actors: list):
        self._actors = actors

    def ask(self, name: str) -> list:
        """An attribute of every engine."""
        import ray

        with _plain_errors():
            return ray.get([actor.attribute.remote(name) for actor in self._actors])

    def map(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Every number with what an engine returned for it, in the order in which they finish. Ends the engines; can be called once.

        An engine for which no prompt is left gives its place back at once: one whose machine was lost, and that found no other place, starts there.
        """
        from ray.util import ActorPool

        pool, successors = ActorPool(self._actors), set()
        self._actors.clear()  # an engine lives as long as there is a reference to it
        with _plain_errors():
            for number, result, successor in pool.map_unordered(
                lambda actor, number: actor.run.remote(number), list(numbers)
            ):
                pool.pop_idle()
                if successor not in (None, *successors):
                    successors.add(successor)
                    tqdm.write(
                        f"An engine was lost. Another one was started on the machine {successor[0]}, and draws its prompt again.",
                        file=sys.stderr,
                    )
                yield number, result


class _Worker:
    """Runs in a process of its own. The engine is made when it is first asked for: an error of an actor's constructor would come out as Ray's."""

    def __init__(self, build: Callable[[], Engine], threads: int, folder: str, elsewhere: bool):
        self._build, self._threads, self._folder, self._elsewhere = build, threads, folder, elsewhere

    @cached_property
    def _engine(self) -> Engine:
        torch.set_num_threads(self._threads)
        with suppress(OSError):  # another machine may lack the folder, and needs it for relative paths only
            os.chdir(self._folder)
        try:
            return self._build()
        except AdtError as error:
            where = (
                f" (On the machine {platform.node()}: the paths of weights and pictures must hold on every machine.)"
                if self._elsewhere
                else ""
            )
            raise AdtError(f"{error}{where}") from error

    def load(self) -> None:
        self._engine  # noqa: B018

    def attribute(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, number: int) -> tuple[int, Any, tuple[str, int] | None]:
        """What came of a prompt, under its number; and the machine and number of this process if it replaces one that was lost."""
        import ray

        replaces = ray.get_runtime_context().was_current_actor_reconstructed
        return number, self._engine(number), (platform.node(), os.getpid()) if replaces else None


def _connect(options: argparse.Namespace, workers: int) -> Any:
    """The module ``ray``, connected to the cluster at ``--ray-address``, or to one that is started here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address, quiet = options.ray_address, {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.setdefault(
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
        )  # a cluster for this machine alone listens to this machine alone, on Linux too
        os.environ.setdefault(
            "RAY_worker_niceness", "0"
        )  # as urgent as the command is without Ray, whose own choice is 15
    import ray

    if address is None:
        gpus = torch.cuda.device_count() if options.device != "cpu" else 0
        ray.init(
            "local",
            num_cpus=max(workers, torch.get_num_threads()),
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            **quiet,
        )
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
    """What one engine takes of the cluster: a GPU if there are any and they may be used, else a core. AdtError if there is too little for all."""
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
            f"--workers: an engine was lost {RESTARTS + 1} times, or can't be started at all ({said}); too little memory is a frequent reason, "
            "and a machine without this pack another. What had been finished is kept."
        ) from error
