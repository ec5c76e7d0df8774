"""A seeded subset of ``python -m benchmarks.lossless``, on the bundled model: every method and drafter, on whole
images."""

import pytest
import torch

from adt_core import load_drafter, load_target
from adt_core.app.benchmark import sources
from benchmarks.harness import captions
from benchmarks.lossless import TIE, run_matrix, settings

CASES = [(torch.float64, 1.0), (torch.float64, 0.0), (torch.float32, 1.0), (torch.float32, 0.0)]


@pytest.mark.parametrize("dtype, temperature", CASES, ids=str)
def test_every_setting_writes_the_tokens_of_plain_decoding(dtype, temperature):
    """Settings are dealt to the cases, and most top-k ones left out, to save time."""
    dealt = settings()[:16][CASES.index((dtype, temperature)) :: len(CASES)]
    target = load_target(dtype=dtype)
    cells = run_matrix(
        target, sources(load_drafter("bundled", target)), captions(3100, 1), [2**63 + 5], [temperature], dealt
    )
    for name, cell in cells.items():
        assert cell.really_drafted, name
        if dtype == torch.float64:
            assert cell.identical == cell.images, name
        else:
            assert all(gap < TIE for gap in cell.first_gaps), (name, cell.first_gaps)
    accepted_ranks = set().union(*(cell.ranks for cell in cells.values()))
    accepted_depths = set().union(*(cell.depths for cell in cells.values()))
    assert {0, 1, 2} <= accepted_ranks and {1, 2, 3, 4} <= accepted_depths
