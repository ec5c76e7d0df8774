"""Images that start from given tokens: what is kept stays, and the rest is that of plain decoding, whatever drafts
it."""

import pytest
import torch

from adt_core import AdtError, Decoding, Drafting, Lantern, Sampling, load_drafter
from adt_core.drafters import with_window
from adt_core.drafters.jacobi import JacobiDrafter, JacobiProposer

PLAIN = Drafting(method="autoregressive")
METHODS = {
    "eagle2": ("eagle", Drafting(method="eagle2", depth=3, width=3, nodes=9)),
    "adt-tree": ("eagle", Drafting("adt-tree")),
    "vertical": ("eagle", Drafting("adt-tree", init="vertical", wrap="reset")),
    "static": ("eagle", Drafting(method="static:naive_extend_57")),
    "jacobi": ("jacobi", Drafting(method="eagle2", depth=5, width=3, nodes=16)),
    "merged": ("merged", Drafting(method="eagle2", depth=5, width=3, nodes=16)),
    "auto": ("eagle", Drafting(method="auto")),
}
STARTS = [0, 1, 3, 4, 6, 11, 14, 15, 16]  # of 16 tokens in rows of 4


def decode(models, drafting=PLAIN, source="eagle", prefix=None, prompts=("a cat", "three small dogs"), **options):
    target, network = models
    drafter = {"eagle": network, "jacobi": load_drafter("jacobi", target), "merged": with_window(network)}[source]
    options = {"sampling": Sampling(seed=5), "image_indices": list(range(len(prompts))), **options}
    decoding = Decoding(
        target, [target.encode_prompt(p) for p in prompts], drafting=drafting, drafter=drafter, prefix=prefix, **options
    )
    for _ in decoding:
        pass
    return decoding


def strangers_codes(images, count, seed=3):
    """Tokens that the model would hardly have drawn itself."""
    return torch.randint(40, (images, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_continues_as_plain_decoding_does(models, name, start):
    source, drafting = METHODS[name]
    prefix = strangers_codes(2, start)
    plain = decode(models, prefix=prefix)
    drafted = decode(models, drafting, source, prefix)
    assert torch.equal(drafted.codes, plain.codes) and (plain.codes >= 0).all()
    assert torch.equal(plain.codes[:, :start], prefix)
    assert name == "auto" or (drafted.trace.report()["verified_nodes"] > 0) == (start < 14), (
        "drafts are checked wherever there is room for one"
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_image_continued_from_its_own_beginning_is_that_image(models, name, temperature):
    source, drafting = METHODS[name]
    sampling = Sampling(seed=9, temperature=temperature)
    whole = decode(models, sampling=sampling)
    for start in (1, 4, 9):
        assert torch.equal(
            decode(models, drafting, source, whole.codes[:, :start], sampling=sampling).codes, whole.codes
        )


@pytest.mark.parametrize("sampling", [Sampling(guidance=1.0), Sampling(top_k=5), Sampling(top_p=0.8, temperature=1.3)])
def test_filters_and_guidance_stay_lossless(models, sampling):
    prefix = strangers_codes(2, 6)
    assert torch.equal(
        decode(models, Drafting("adt-tree"), prefix=prefix, sampling=sampling).codes,
        decode(models, prefix=prefix, sampling=sampling).codes,
    )


def test_what_follows_depends_on_seed_prompt_and_prefix(models):
    prefix = strangers_codes(1, 8)
    codes = [
        decode(models, prefix=prefix, prompts=("a cat",)).codes,
        decode(models, prefix=prefix, prompts=("fog",)).codes,
        decode(models, prefix=prefix, prompts=("a cat",), sampling=Sampling(seed=6)).codes,
        decode(models, prefix=strangers_codes(1, 8, seed=4), prompts=("a cat",)).codes,
    ]
    rests = {tuple(c[0, 8:].tolist()) for c in codes}
    assert len(rests) == 4 and all(torch.equal(c[:, :8], prefix) for c in codes[:3])


def test_an_image_does_not_depend_on_its_batch(models):
    prefix = strangers_codes(3, 5)
    prompts = ("a", "bb", "a much longer prompt")
    together = decode(models, Drafting("adt-tree"), prefix=prefix, prompts=prompts)
    for i, prompt in enumerate(prompts):
        alone = decode(models, Drafting("adt-tree"), prefix=prefix[i : i + 1], prompts=(prompt,), image_indices=[i])
        assert torch.equal(alone.codes[0], together.codes[i])


def test_a_windows_columns_start_from_what_is_kept(models):
    """Behind a prefix the window knows the row above; at the top of an image it has the first token's distribution
    alone."""
    target, _ = models

    class Watched(JacobiProposer):
        """Writes down the logits z [columns, V] from which it guesses the first four positions."""

        def propose(self, roots, shapes):
            window = self.open(roots, shapes)
            z = torch.empty_like(window.scores).scatter_(2, window.candidates, window.scores)
            guessed.append(z[0, (window.at[0] % target.columns).argsort()])
            return self.close(window, shapes)

    class WatchedDrafter(JacobiDrafter):
        def proposer(self, session):
            return Watched(session, target.num_codes)

    def above(start):
        guessed.clear()
        decoding = Decoding(
            target,
            [target.encode_prompt("x")],
            drafting=Drafting("eagle2", depth=target.columns, width=target.num_codes, nodes=target.columns),
            drafter=WatchedDrafter(),
            sampling=Sampling(guidance=1, temperature=0),  # so that there is no noise in what it guesses from
            prefix=strangers_codes(1, start),
        )
        next(iter(decoding))
        return guessed[0]

    guessed = []
    assert all(torch.equal(column, above(0)[0]) for column in above(0))
    long, longer = above(6), above(7)
    for column in (0, 1, 2):
        assert torch.allclose(longer[column], long[column], atol=1e-9), "only the newest column has changed"
    assert len({column.argmax().item() for column in longer}) > 1 and not torch.equal(longer[3], long[3])
    early = above(1)  # positions 0 and 1 are known, and the newest stands in for columns 2 and 3
    assert torch.equal(early[2], early[1]) and not torch.equal(early[0], early[1])


def test_figures_count_what_was_drawn(models):
    drafted = decode(models, Drafting("adt-tree"), prefix=strangers_codes(2, 6))
    report = drafted.trace.report()
    assert report["tokens"] == 2 * 10 and drafted.total_tokens == drafted.done_tokens == 2 * 16
    assert (
        sum(share.accepted + 1 for round in drafted.trace.rounds for share in round.images) == 2 * 9
    )  # the first comes from the prefill
    cells = [cell for row in drafted.trace.acceptance_map() for cell in row]
    assert cells[:6] == [0] * 6 and all(cell > 0 for cell in cells[6:])
    assert all(share.position >= 6 for round in drafted.trace.rounds for share in round.images)


def test_an_image_that_is_kept_whole(models):
    prefix = strangers_codes(2, 16)
    decoding = decode(models, Drafting("adt-tree"), prefix=prefix)
    assert (
        torch.equal(decoding.codes, prefix) and decoding.trace.rounds == [] and decoding.trace.report()["tokens"] == 0
    )


def test_the_cap_on_substitution_counts_drawn_tokens(models):
    """Kept tokens earn no allowance: with a cap of a tenth, ten drawn tokens allow one."""
    lantern = Lantern(neighbours=39, delta=1.0, max_substitution=0.1)
    for seed in range(4):
        decoding = decode(
            models, METHODS["eagle2"][1], prefix=strangers_codes(2, 6), lantern=lantern, sampling=Sampling(seed=seed)
        )
        for image in range(2):
            shares = [share for round in decoding.trace.rounds for share in round.images if share.image == image]
            assert sum(share.substituted for share in shares) <= 1


@pytest.mark.parametrize(
    "prefix, words",
    [
        (torch.zeros(1, 4, dtype=torch.long), "2 images"),
        (torch.zeros(2, 17, dtype=torch.long), "at most 16"),
        (torch.zeros(4, dtype=torch.long), r"\[4\]"),
        (torch.full((2, 3), 40), "codes 0 to 39"),
        (torch.full((2, 3), -1), "from -1"),
    ],
)
def test_a_prefix_that_does_not_fit(models, prefix, words):
    with pytest.raises(AdtError, match=words):
        decode(models, prefix=prefix)


def test_memory_of_a_long_prefill_is_counted(models):
    target, _ = models
    row = [target.encode_prompt("x")]
    assert (
        Decoding(target, row, drafting=PLAIN, prefix=strangers_codes(1, 15)).memory_required()
        > Decoding(target, row, drafting=PLAIN).memory_required()
    )
