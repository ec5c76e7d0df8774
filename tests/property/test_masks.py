"""Property tests of masks: kept tokens stay, and the others equal plain decoding with a batch size of 1."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import Lantern, Sampling
from adt_core.policies import PLAIN, Drafting
from tests.property.test_slots import INDEPENDENT, PROMPTS, SHARING, decode
from tests.property.tiny_models import LENGTH, models

MASKS = st.lists(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH), min_size=1, max_size=4)


@given(
    seed=st.integers(0, 2**64 - 1),
    masks=MASKS,
    batch_size=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 1.0]),
    guidance=st.sampled_from([1.0, 3.0]),
    lantern=st.booleans(),
    drafts=st.sampled_from([*INDEPENDENT, *SHARING, (None, Drafting(PLAIN))]),
)
def test_any_mask(seed, masks, batch_size, temperature, guidance, lantern, drafts):
    sampling = Sampling(seed, temperature, guidance_scale=guidance)
    generated = torch.tensor(masks)
    draw = torch.Generator().manual_seed(seed % 2**31)
    codes = torch.randint(models()[0].num_codes, generated.shape, generator=draw)
    kept = torch.where(generated, -1, codes)
    prompts = PROMPTS[: len(masks)]
    how = {"sampling": sampling, "lantern": Lantern(10, 0.0) if lantern else None}
    together = decode(prompts, *drafts, kept=kept, batch_size=batch_size, image_indices=range(len(masks)), **how)
    assert together.codes[~generated].equal(codes[~generated])
    for i, prompt in enumerate(prompts):
        single = decode([prompt], None, Drafting(PLAIN), kept=kept[i : i + 1], image_indices=[i], sampling=sampling)
        assert torch.equal(together.codes[i], single.codes[0])
    trace = together.trace
    emitted = sum(record.accepted + 1 for round in trace.rounds for record in round.images)
    first = ~generated[:, : trace.start + 1]  # the prefill generates a token of the images that do not keep this one
    by_prefill = int(generated[:, trace.start].sum()) if trace.start < first.shape[1] and generated.any() else 0
    assert trace.report()["tokens"] == int(generated.sum()) == emitted + by_prefill
    for i in range(len(masks)):
        cells = torch.tensor([cell for row in trace.acceptance_map(i) for cell in row])
        assert (cells > 0).equal(generated[i])


@given(seed=st.integers(0, 2**32), mask=MASKS)
def test_lantern_never_substitutes_kept_tokens(seed, mask):
    """Relaxed acceptance that accepts nearly everything must still keep the kept tokens, and count only the others."""
    generated = torch.tensor(mask)
    codes = torch.randint(models()[0].num_codes, generated.shape, generator=torch.Generator().manual_seed(seed % 2**31))
    how = {"lantern": Lantern(39, delta=1.0, max_substitution=0.5), "sampling": Sampling(seed)}
    kept = torch.where(generated, -1, codes)
    tree = Drafting("eagle2", depth=3, width=3, drafts=9)
    drafted = decode(PROMPTS[: len(mask)], "network", tree, kept=kept, **how)
    assert drafted.codes[~generated].equal(codes[~generated])
    for image in range(len(mask)):
        records = [one for round in drafted.trace.rounds for one in round.images if one.image == image]
        assert sum(record.substituted for record in records) <= 0.5 * int(generated[image].sum())


def test_a_run_costs_one_round():
    """Tokens 2 to 4 and 9 to 12 of 16 are generated: two runs, of which the prefill reads the first."""
    codes = torch.zeros(1, LENGTH, dtype=torch.long)
    codes[0, 2:5] = codes[0, 9:13] = -1
    trace = decode(["a cat"], None, Drafting(PLAIN), kept=codes).trace
    assert [record.kept for round in trace.rounds for record in round.images] == [0, 0, 4, 0, 0, 0]
