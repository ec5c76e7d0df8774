"""Simulation of a long list on many workers that fail: time, lost work, balance, and the load of a driver.

    python -m benchmarks.cluster

All figures are computed. Nothing is generated, and the network is assumed to be fast enough. It compares two ways to
divide a list:

- *shards*: each worker generates every N-th image, as with ``generate --shard I/N``. A worker that fails starts again,
  loads the model, and continues its shard.
- *Ray*: a free worker takes the next batch of the list, as with ``generate --workers N``. The batch of a worker that
  fails goes back to the list, and the next free worker takes it.
"""

from __future__ import annotations

import argparse
import heapq
from itertools import product
from typing import NamedTuple

import numpy as np

from .tables import table

HOUR = 3600.0
PER_TOKEN = 8  # bytes in a message of a worker
RECORD = 2000  # bytes of an image's settings and statistics in a message of a worker


class Cluster(NamedTuple):
    """Workers, and the list that they generate."""

    images: int
    workers: int
    batch: int  # number of images that a worker decodes together, and loses if it fails
    seconds: float  # mean seconds per image and worker
    spread: float  # standard deviation of the speed of the workers, relative to its mean
    load: float  # seconds from a failure until the model is loaded again
    failures: float  # failures per worker and hour


class Outcome(NamedTuple):
    """Result of a simulated run."""

    hours: float  # time until the last image
    lost: float  # worker hours for images that were repeated and for loading again
    idle: float  # share of the workers' time after their last image
    failures: int


class Worker:
    """Worker whose failures are exponentially distributed."""

    def __init__(self, cluster: Cluster, generator: np.random.Generator):
        self._cluster = cluster
        self._generator = generator
        self._pace = cluster.seconds * max(0.1, 1 + cluster.spread * generator.standard_normal())
        self._failure = self._next_failure(0.0)
        self.end = cluster.load  # of its last image, in seconds
        self.lost = 0.0  # seconds for images that are generated again, and for loading again
        self.failures = 0

    def _next_failure(self, now: float) -> float:
        rate = self._cluster.failures / HOUR
        return now + self._generator.exponential(1 / rate) if rate else np.inf

    def attempt(self, now: float, images: int) -> tuple[float, bool]:
        """Return when a batch that begins now ends, and whether it ends with a failure."""
        end = now + images * self._pace
        if self._failure >= end:
            self.end = end
            return end, False
        failed = max(now, self._failure)
        self.lost += failed - now + self._cluster.load
        self.failures += 1
        self._failure = self._next_failure(failed + self._cluster.load)
        return failed, True


def simulate(cluster: Cluster, is_static: bool, seed: int) -> Outcome:
    """Simulate a run.

    Args:
        is_static: Whether each worker has a fixed part of the list (shards), or takes the next batch (Ray).
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)))
    numbers = range(cluster.workers)
    workers = [Worker(cluster, generator) for _ in numbers]
    # Images that wait: in a list of each worker, or in one list.
    waiting = [len(range(number, cluster.images, cluster.workers)) for number in numbers]
    waiting = waiting if is_static else [cluster.images]
    # Time, number of the worker, and images that it gives back because it fails at this time.
    events = [(cluster.load, number, 0) for number in numbers]
    idle: list[int] = []
    while events:
        now, number, returned = heapq.heappop(events)
        mine = number % len(waiting)
        waiting[mine] += returned
        if returned:
            for other in idle:
                heapq.heappush(events, (now, other, 0))
            idle = []
            heapq.heappush(events, (now + cluster.load, number, 0))
        elif size := min(cluster.batch, waiting[mine]):
            waiting[mine] -= size
            end, has_failed = workers[number].attempt(now, size)
            heapq.heappush(events, (end, number, size if has_failed else 0))
        else:
            idle.append(number)
    last = max(worker.end for worker in workers)
    idle_share = 1 - sum(worker.end for worker in workers) / (last * cluster.workers)
    lost = sum(worker.lost for worker in workers) / HOUR
    return Outcome(last / HOUR, lost, idle_share, sum(worker.failures for worker in workers))


COLUMNS = ("failures", "way", "hours", "of the ideal", "failures in the run", "worker hours lost", "idle")


def runs_table(cluster: Cluster, rates: dict[str, float], seeds: int) -> str:
    """Return a Markdown table of the medians over several simulated runs."""
    ideal = (cluster.images * cluster.seconds / cluster.workers + cluster.load) / HOUR
    rows = []
    for (label, rate), way in product(rates.items(), ("shards", "Ray")):
        runs = [simulate(cluster._replace(failures=rate), way == "shards", seed) for seed in range(seeds)]
        hours, lost, idle, failures = np.median(np.array(runs), axis=0)
        rows.append((label, way, hours, f"{hours / ideal:.3f}", f"{failures:.0f}", f"{lost:.1f}", f"{idle:.1%}"))
    return table(COLUMNS, rows)


def driver_load(cluster: Cluster, side: int, tokens: int) -> str:
    """Return sentences on the data that the driver of a Ray cluster receives and writes.

    Args:
        side: Width and height of an image in pixels.
        tokens: Number of tokens of an image.
    """
    rate = cluster.workers / cluster.seconds
    record = PER_TOKEN * tokens + RECORD
    return (
        f"The driver receives {rate / cluster.batch:.1f} batches per second with the records of {rate:.0f} images, "
        f"about {rate * record / 1e6:.1f} MB per second ({tokens} tokens per image). Images in a folder that is not "
        f"shared add at most {rate * 3 * side * side / 1e6:.0f} MB per second ({side} x {side} pixels). With shards, "
        "nobody receives anything."
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="mean seconds per image and worker")
    parser.add_argument("--spread", type=float, default=0.05, help="relative spread of the workers' speeds")
    parser.add_argument("--load", type=float, default=120.0, help="seconds from a failure to the next image")
    parser.add_argument("--seeds", type=int, default=9, help="number of simulated runs")
    options = vars(parser.parse_args())
    seeds = options.pop("seeds")
    cluster = Cluster(**options, failures=0.0)
    # 419 unexpected interruptions in 54 days on 16,384 GPUs: Llama 3, arXiv 2407.21783, section 3.3.4
    published = 419 / (54 * 24 * 16_384)
    rates = {"none": 0.0, f"{published:.1e} per hour (a data centre)": published, "0.05 per hour (spot)": 0.05}
    print(runs_table(cluster, rates, seeds), driver_load(cluster, 512, 1024), sep="\n\n")


if __name__ == "__main__":
    main()
