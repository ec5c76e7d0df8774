"""A seeded subset of ``python -m benchmarks.lossless``, on the bundled model."""

import pytest
import torch

from adt_core import load_drafter, load_target
from benchmarks.harness import captions
from benchmarks.lossless import TIE, run_matrix, settings


@pytest.mark.parametrize("dtype, images", [(torch.float64, 1), (torch.float64, 2), (torch.float32, 1)], ids=str)
def test_every_setting_writes_the_tokens_of_plain_decoding(dtype, images):
    target = load_target(dtype=dtype)
    cells = run_matrix(target, load_drafter("bundled", target), captions(3100, images), [2**63 + 5], [0.0, 1.0], settings())
    for name, cell in cells.items():
        assert cell.really_drafted, name
        if dtype == torch.float64:
            assert cell.identical == cell.images, name
        else:
            assert all(gap < TIE for gap in cell.first_gaps), (name, cell.first_gaps)
    accepted_ranks = set().union(*(cell.ranks for cell in cells.values()))
    accepted_depths = set().union(*(cell.depths for cell in cells.values()))
    assert {0, 1, 2} <= accepted_ranks and {1, 2, 3, 4} <= accepted_depths
