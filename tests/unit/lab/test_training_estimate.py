"""Tests of the sentence on the time, memory and disk space of a training."""

import pytest

from adt_core.lab.training.estimate import GIB, TrainingEstimate


@pytest.mark.parametrize(
    "drawing, learning, said",
    [(40, 32.4, "72 s (40 to generate, 32 to train)"), (600, 1800, "40 min (10 to generate, 30 to train)")],
)
def test_a_short_time_is_named_in_seconds(drawing, learning, said):
    estimate = TrainingEstimate(drawing, learning, memory=2 * GIB, disk=12 * GIB)
    assert estimate.message == f"The training takes about {said}, 2.0 GiB of memory and 12 GiB of disk."
