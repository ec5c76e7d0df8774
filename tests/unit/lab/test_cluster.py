"""Tests of the simulation of long lists on many workers."""

import pytest

from benchmarks.cluster import HOUR, Cluster, simulate

EQUAL = Cluster(images=4000, workers=10, batch=4, seconds=3.0, spread=0.0, load=60.0, failures=0.0)


@pytest.mark.parametrize("is_static", [True, False])
def test_equal_workers_without_failures_need_the_ideal_time(is_static):
    found = simulate(EQUAL, is_static, seed=1)
    assert found.hours == pytest.approx((400 * 3.0 + 60.0) / HOUR)
    assert (found.lost, found.idle, found.failures) == (0, pytest.approx(0), 0)


@pytest.mark.parametrize("is_static", [True, False])
def test_a_failure_costs_its_batch_and_loading(is_static):
    found = simulate(EQUAL._replace(failures=3.0), is_static, seed=1)
    assert found.failures > 3
    assert found.failures * 60 <= found.lost * HOUR <= found.failures * (60 + 4 * 3.0)


def test_ray_balances_workers_of_different_speed():
    uneven = EQUAL._replace(spread=0.2)
    shards, ray = (simulate(uneven, is_static, seed=2) for is_static in (True, False))
    assert ray.idle < 0.02 < shards.idle and ray.hours < shards.hours


def test_the_batch_of_a_failed_worker_is_taken_by_another():
    """One of ten workers fails once, and loads for longer than the others need for the list."""
    slow = EQUAL._replace(images=400, load=600.0, failures=0.5)
    shards, ray = (simulate(slow, is_static, seed=4) for is_static in (True, False))
    assert shards.failures == ray.failures == 1
    assert ray.hours * HOUR < 600 + 1.25 * 120 and shards.hours * HOUR > 2 * 600
