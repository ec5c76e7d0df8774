"""A seeded subset of ``python -m benchmarks.lossless`` on the bundled model: every method and drafter, whole images."""

import pytest
import torch

from adt_core import load_target
from benchmarks.harness import captions
from benchmarks.lossless import SETTINGS, TIE, run_matrix

CASES = {
    "float32, sampled": (torch.float32, 1.0, SETTINGS[1:16:4]),
    "float32, greedy": (torch.float32, 0.0, SETTINGS[3:16:4]),
    "float64, sampled": pytest.param(torch.float64, 1.0, SETTINGS[::2], marks=pytest.mark.long),
    "float64, greedy": pytest.param(torch.float64, 0.0, SETTINGS[::3], marks=pytest.mark.long),
    "more in float32, sampled": pytest.param(torch.float32, 1.0, SETTINGS[::3], marks=pytest.mark.long),
    "more in float32, greedy": pytest.param(torch.float32, 0.0, SETTINGS[::2], marks=pytest.mark.long),
}
"""Some of the settings each. tests/unit/test_accepted_drafts.py continues images in float64 with nearly all of them."""


@pytest.mark.parametrize("dtype, temperature, dealt", CASES.values(), ids=CASES)
def test_every_setting_writes_the_tokens_of_plain_decoding(dtype, temperature, dealt):
    cells = dict(run_matrix(load_target(dtype=dtype), captions(3100, 1), [2**63 + 5], [temperature], dealt))
    assert len(cells) == len(dealt), "two settings have one name"
    for name, cell in cells.items():
        assert cell.really_drafted, name
        assert cell.lossless(TIE if dtype == torch.float32 else 0.0), (name, cell.first_gaps)
    accepted_ranks = set().union(*(cell.ranks for cell in cells.values()))
    accepted_depths = set().union(*(cell.depths for cell in cells.values()))
    assert {0, 1, 2} <= accepted_ranks and {1, 2, 3, 4} <= accepted_depths
