"""Tests that compile all Triton kernels for GPUs that this machine lacks."""

import pytest

from tests.compiling import CAPABILITIES, formats, resources

pytest.importorskip("triton", reason="Triton is not installed")

SHARED_MEMORY = {75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
"""Shared memory of a multiprocessor in KB, by compute capability times 10 (CUDA C++ Programming Guide, table of
technical specifications). From 8.0 on, the system needs 1 KB for each program."""


@pytest.fixture(scope="module", params=CAPABILITIES)
def capability(request):
    return request.param


@pytest.fixture(scope="module")
def compiled(capability):
    return resources(capability)


@pytest.mark.long
def test_kernels_fit_into_registers_and_shared_memory(capability, compiled):
    for row in compiled:
        assert not row.spilled, row
        programs = 1 if capability < 80 else 2
        assert programs * (row.shared + 1024) <= SHARED_MEMORY[capability] * 1024, row


@pytest.mark.long
def test_all_numbers_of_rows_use_the_same_matrix_instruction(compiled):
    """Instructions of another shape may add the inputs in another order, so a row would get other bits."""
    found = formats(compiled)
    assert len(found) == 3, "int8, fp8, int4"
    assert all(len(instructions) == 1 for instructions in found.values()), found
