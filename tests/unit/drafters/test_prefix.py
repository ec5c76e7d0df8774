"""Tests of images with kept tokens: dependence on the settings, statistics, and the start of the Jacobi window."""

from copy import copy

import pytest
import torch

from adt_core import Drafting, Sampling
from adt_core.drafters.jacobi import JacobiDrafter, JacobiProposer
from adt_core.policies import PLAIN
from adt_core.run.masks import upper_part_kept
from tests.drafted import new_decoding, run
from tests.raising import raises_key


def decode(models, drafting=None, kept=None, prompts=("a cat", "three small dogs"), **options):
    target, network = models
    given = {"drafting": drafting, "drafter": network} if drafting else {}
    return run(target, prompts=prompts, kept=kept, image_indices=range(len(prompts)), **given, **options)


def random_codes(images, count, seed=3):
    """Return random codes [images, count]. They are improbable for the model."""
    return torch.randint(40, (images, count), generator=torch.Generator().manual_seed(seed))


def test_decoded_tokens_depend_on_seed_prompt_and_prefix(models):
    prefix = random_codes(1, 8)
    codes = [
        decode(models, kept=prefix, prompts=("a cat",)).codes,
        decode(models, kept=prefix, prompts=("fog",)).codes,
        decode(models, kept=prefix, prompts=("a cat",), sampling=Sampling(seed=6)).codes,
        decode(models, kept=random_codes(1, 8, seed=4), prompts=("a cat",)).codes,
    ]
    rests = {tuple(c[0, 8:].tolist()) for c in codes}
    assert len(rests) == 4 and all(torch.equal(c[:, :8], prefix) for c in codes[:3])


def test_a_window_starts_from_the_logits_of_the_first_decoded_token(models):
    """The window must start from the target's logits after the kept tokens."""
    target, _ = models

    class Watched(JacobiProposer):
        """Proposer that records the logits z [4, V] of the guesses for the first four positions."""

        def propose(self, roots, shapes):
            window = self.open_window(roots, shapes)
            z = torch.empty_like(window.scores).scatter_(2, window.candidates, window.scores)
            guessed.append(z[0])
            return self.build_tree(window, shapes)

    class WatchedDrafter(JacobiDrafter):
        def proposer(self, context, rows, noise):
            return Watched(context, rows, noise, target.num_codes)

    guessed: list[torch.Tensor] = []

    def first_guesses(start):
        guessed.clear()
        decoding = new_decoding(
            target,
            [target.encode_prompt("x")],
            drafting=Drafting("eagle2", depth=target.columns, width=target.num_codes, drafts=target.columns),
            drafter=WatchedDrafter(),
            sampling=Sampling(guidance_scale=1, temperature=0),  # the guesses have no noise
            kept=random_codes(1, start),
        )
        next(iter(decoding))
        return guessed[0]

    without_prefix, after_six, after_seven = map(first_guesses, (0, 6, 7))
    for z in (without_prefix, after_six, after_seven):
        assert len(z) == 4 and all(torch.equal(one, z[0]) for one in z)
    assert not torch.equal(without_prefix[0], after_six[0]) and not torch.equal(after_six[0], after_seven[0])


def test_statistics_count_decoded_tokens(models):
    drafted = decode(models, Drafting("adt-tree"), kept=random_codes(2, 6))
    report = drafted.trace.report()
    assert report["tokens"] == 2 * 10 and drafted.total_tokens == drafted.done_tokens == 2 * 16
    records = [record for round in drafted.trace.rounds for record in round.images]
    assert sum(record.accepted + 1 for record in records) == 2 * 9, "the prefill samples the first token"
    cells = [cell for row in drafted.trace.acceptance_map() for cell in row]
    assert cells[:6] == [0] * 6 and all(cell > 0 for cell in cells[6:])
    assert all(record.position >= 6 for record in records)


def test_a_completely_kept_image(models):
    prefix = random_codes(2, 16)
    decoding = decode(models, Drafting("adt-tree"), kept=prefix)
    assert torch.equal(decoding.codes, prefix)
    assert decoding.trace.rounds == [] and decoding.trace.report()["tokens"] == 0


@pytest.mark.parametrize(
    "prefix, key, values",
    [
        (torch.zeros(1, 4, dtype=torch.long), "kept.shape", {"images": 2}),
        (torch.zeros(2, 17, dtype=torch.long), "kept.shape", {"most": 16}),
        (torch.zeros(4, dtype=torch.long), "kept.shape", {"shape": "[4]"}),
        (torch.full((2, 3), 40), "kept.codes", {"last": 39}),
        (torch.full((2, 3), -2), "kept.codes", {"low": -2}),
    ],
)
def test_invalid_prefixes(models, prefix, key, values):
    with raises_key(key, **values):
        decode(models, kept=prefix)


def test_required_memory_includes_a_long_prefill(models):
    target, _ = models
    row = [target.encode_prompt("x")]
    plain = Drafting(PLAIN)
    short, long = (new_decoding(target, row, drafting=plain, kept=random_codes(1, count)) for count in (0, 15))
    assert long.memory_required() > short.memory_required()


def test_a_small_image_is_taken_at_regular_distances(models):
    """A small image of 2 x 3 codes for an image of 4 x 4: rows 0 and 2, columns 0, 1 and 2. Row 1 is generated."""
    target = copy(models[0])
    target.grid = (4, 4)
    target.lead_of = lambda grid: (2, 3)
    cells = torch.arange(16).view(1, 4, 4)
    generated = upper_part_kept(target.grid, 8)
    assert target.kept(cells, generated).tolist() == [[0, 1, 2, -1, -1, -1, *range(8), *[-1] * 8]]
