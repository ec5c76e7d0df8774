"""Files of small random models."""

import pytest

from tests.tiny import write_tiny_checkpoint


@pytest.fixture
def target(tmp_path):
    """Return the folder of a tiny checkpoint, which the test may change."""
    return write_tiny_checkpoint(tmp_path / "target")
