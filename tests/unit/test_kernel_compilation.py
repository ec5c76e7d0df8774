"""Tests that compile all Triton kernels for GPUs that this machine lacks."""

import pytest

from tests.compiling import CAPABILITIES, resources

pytest.importorskip("triton", reason="Triton is not installed")

SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Shared memory of a program in KB, by compute capability times 10 (CUDA C++ Programming Guide, table of technical
specifications)."""


@pytest.mark.long
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_fit_into_registers_and_shared_memory(capability):
    for row in resources(capability):
        assert not row.spilled, row
        assert row.shared <= SHARED_MEMORY[capability] * 1024, row
