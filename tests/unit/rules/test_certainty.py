"""Tests that a decoding records how certain the target is of each token, and that drafts do not change these values."""

import pytest

from adt_core import Drafting
from tests.drafted import METHODS, run


@pytest.mark.parametrize("name", ["jacobi", "auto, jacobi"])
def test_every_token_has_the_certainty_of_plain_decoding(target, name):
    from adt_core import load_drafter

    source, options = METHODS[name]
    plain = run(target).trace
    drafted = run(target, load_drafter(source, target), drafting=Drafting(**options)).trace
    for image in range(plain.images):
        expected = [value for row in plain.token_map("certainty", image) for value in row]
        found = [value for row in drafted.token_map("certainty", image) for value in row]
        assert found == pytest.approx(expected, abs=2e-4) and all(0 < value <= 1 for value in found[1:])
    for record in (record for round in drafted.rounds for record in round.images):
        assert len(record.probabilities) == len(record.entropies) == record.accepted + 1
        assert all(entropy >= 0 for entropy in record.entropies)
