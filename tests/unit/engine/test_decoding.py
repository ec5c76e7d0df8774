"""Tests of the round loop with tiny random models: stub drafters, memory, and requests.

The stub drafters are always, never or sometimes right.
"""

import copy
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
import torch

from adt_core import Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.drafters import Drafter, Proposer
from adt_core.drafters.eagle import EagleProposer
from adt_core.engine import decoding as decodings
from adt_core.memory_limit import PROCESS_BYTES
from adt_core.policies import PLAIN, POLICIES
from adt_core.rules.tree import chain
from tests.drafted import new_decoding, run
from tests.raising import raises_key

TREE = Drafting("eagle2", depth=3, width=2, drafts=6)
FIVE = ("a cat", "three small dogs", "x", "a boat", "no")


class StubDrafter(Drafter):
    """Drafter that drafts a chain of the true codes [B, T], but wrong ones at positions that are not `right`."""

    def __init__(self, truth, right):
        self.truth = truth
        self.right = right

    def proposer(self, context, rows, noise):
        return StubProposer(context, rows, noise, self)


class StubProposer(Proposer):
    by_image = ("truth",)

    def __init__(self, context, rows, noise, stub):
        super().__init__(context, rows, noise)
        self.truth = stub.truth
        self.right = stub.right

    def propose(self, roots, shapes):
        last = self.truth.shape[1] - 1
        at = (roots.at + 1 + torch.arange(shapes.depth)).clamp_max(last)
        true = self.truth.gather(1, at)
        wrong = torch.tensor([[not self.right(position) for position in row] for row in at.tolist()])
        drafts = (true + wrong) % self.context.target.num_codes
        allowed = torch.arange(shapes.depth) < shapes.lengths
        return chain(torch.cat([roots.codes[:, None], drafts], 1), torch.where(allowed, 0.0, -torch.inf))


@pytest.mark.parametrize(
    "right, tau",
    [(lambda at: True, 5.0), (lambda at: False, 1.0), (lambda at: at % 3 > 0, None)],
    ids=["always", "never", "sometimes"],
)
def test_stub_drafters(models, right, tau):
    target, _ = models
    truth = run(target).codes
    drafting = Drafting(method="eagle2", depth=4, width=1, drafts=4)
    decoding = run(target, drafter=StubDrafter(truth, right), drafting=drafting)
    assert torch.equal(decoding.codes, truth)
    stubbed = [record for round in decoding.trace.rounds for record in round.images if record.depth == 4]
    mean = sum(record.accepted + 1 for record in stubbed) / len(stubbed)
    assert mean == tau if tau else 1 < mean < 5


def test_decoding_is_deterministic_and_uses_no_global_random_state(models):
    target, drafter = models
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run(target, drafter=drafter, drafting=Drafting("adt-tree", init="random"))
    assert torch.equal(first.codes, run(target, drafter=drafter, drafting=Drafting("adt-tree", init="random")).codes)
    assert torch.equal(state, torch.get_rng_state())


def test_progress_increases_and_the_map_covers_the_grid(models):
    target, drafter = models
    decoding = new_decoding(target, [target.encode_prompt("x")], drafter=drafter)
    seen = [decoding.done_tokens for _ in decoding]
    assert seen == sorted(seen) and seen[-1] == decoding.total_tokens == 16
    assert [len(row) for row in decoding.trace.acceptance_map()] == [4] * 4
    assert decoding.memory_required() > 0


@pytest.mark.parametrize("images, key", [(1, "memory.one_image"), (3, "memory.too_many_images")])
@pytest.mark.parametrize("enough", [True, False])
def test_an_error_states_the_required_memory(models, monkeypatch, images, key, enough):
    target, drafter = models
    decoding = new_decoding(target, [target.encode_prompt("x")] * images, drafter=drafter)
    weights = sum(part.numel() * part.element_size() for part in target.decoder.state_dict().values())
    total = decoding.memory_required() + weights + PROCESS_BYTES - (0 if enough else 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    if enough:
        next(iter(decoding))
    else:
        with raises_key(key, total=f"{total / 2**30:.3g} GiB", owner="this machine"):
            next(iter(decoding))


def tokens_in_rounds(decoding):
    """Return the number of tokens of each image, except the first token, because the prefill samples it."""
    counts = [0] * decoding.images
    for record in (record for round in decoding.trace.rounds for record in round.images):
        counts[record.image] += record.accepted + 1
    return counts


NO_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError("could not create a primitive")
"""Out-of-memory errors: from a GPU, and from a CPU during a matrix product."""


@pytest.mark.parametrize("at, error", [(1, 0), (2, 1), (7, 0), (12, 1)])
def test_the_batch_becomes_smaller_if_memory_runs_out(models, monkeypatch, caplog, at, error):
    """Memory runs out in the prefill, in a round, or when an image enters. Tokens and statistics stay the same."""
    target, drafter = models
    reference = run(target, drafter, FIVE, drafting=TREE)
    forward = type(target.decoder).forward
    calls = []

    def fail_for_lack_of_memory(self, ids, *rest, **named):
        calls.append(len(ids))
        if len(calls) >= at and len(ids) > 4:  # with guidance, an image has two rows
            raise NO_MEMORY[error]
        return forward(self, ids, *rest, **named)

    monkeypatch.setattr(type(target.decoder), "forward", fail_for_lack_of_memory)
    decoding = run(target, drafter, FIVE, drafting=TREE)
    assert torch.equal(decoding.codes, reference.codes) and decoding.batch_size == 2
    assert caplog.messages == ["Out of memory; continuing with 2 images at a time."]
    assert tokens_in_rounds(decoding) == [15] * 5 and decoding.trace.report()["tau"] == reference.trace.report()["tau"]


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("drafting", [Drafting(PLAIN), TREE], ids=lambda d: d.method)
def test_memory_runs_out_when_the_last_image_enters(models, monkeypatch, drafting, guidance):
    """In this case, there are more free batch slots than waiting images."""
    target, drafter = models
    sampling = Sampling(5, guidance_scale=guidance)
    options = {"prompts": FIVE, "drafter": drafter, "drafting": drafting, "sampling": sampling}
    reference = run(target, **options)
    forward = type(target.decoder).forward
    entered = []

    def fail_for_lack_of_memory(self, ids, step, *rest, **named):
        if isinstance(step.cache_position, slice) and step.cache_position.start == 0:
            entered.append(len(ids))
            if len(entered) == 2:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(self, ids, step, *rest, **named)

    monkeypatch.setattr(type(target.decoder), "forward", fail_for_lack_of_memory)
    decoding = run(target, batch_size=4, **options)
    assert torch.equal(decoding.codes, reference.codes) and decoding.batch_size == 2 and len(entered) > 2


def test_the_trace_is_complete_if_memory_runs_out_in_the_last_round(models, monkeypatch):
    """The failed round is repeated, and must count only once."""
    target, drafter = models
    options = {"prompts": ("a cat", "x"), "drafter": drafter, "drafting": TREE}
    reference = run(target, **options)
    calls = []

    class OutOfMemory(EagleProposer):
        def on_verified(self, verified):
            calls.append(verified)
            if len(calls) == len(reference.trace.rounds) - 1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            super().on_verified(verified)

    monkeypatch.setattr("adt_core.drafters.eagle.EagleProposer", OutOfMemory)
    decoding = run(target, **options)
    assert torch.equal(decoding.codes, reference.codes)
    assert tokens_in_rounds(decoding) == [15, 15]


def test_an_image_that_starts_again_has_the_complete_budget_of_lantern(models, monkeypatch):
    """Tokens that were substituted before memory ran out must not count."""
    target, drafter = models
    drafting = Drafting("eagle2", depth=3, width=4, drafts=12, proposal="top-k")
    lantern = Lantern(neighbours=20, delta=1.0, max_substitution=0.2)
    options = {"prompts": FIVE[:2], "drafter": drafter, "drafting": drafting, "lantern": lantern}
    reference = run(target, **options)
    before_last = len(reference.trace.rounds) - 1
    work = decodings.run_round
    rounds = []

    def fail_in_the_last_round(*arguments):
        rounds.append(arguments)
        if len(rounds) == before_last:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return work(*arguments)

    monkeypatch.setattr(decodings, "run_round", fail_in_the_last_round)
    decoding = run(target, **options)
    assert len(rounds) > before_last and reference.trace.report()["substitution_rate"] > 0
    assert torch.equal(decoding.codes, reference.codes)


def test_too_little_memory_for_one_image_is_an_error(models, monkeypatch):
    target, _ = models

    monkeypatch.setattr(type(target.decoder), "forward", Mock(side_effect=NO_MEMORY[0]))
    with pytest.raises(torch.cuda.OutOfMemoryError):  # ComfyUI and the command line report this error
        run(target)


@pytest.mark.parametrize("drafting", [Drafting(PLAIN), Drafting("auto")], ids=lambda d: d.method)
def test_float64_requires_twice_the_memory_of_float32(tiny, drafting):
    """The exception is the codec, which is always in float32."""

    def slots_bytes(dtype):
        target = load_target(tiny / "target", dtype=dtype)
        drafter = load_drafter(tiny / "drafter", target)
        decoding = new_decoding(target, [target.encode_prompt("a cat")], drafting=drafting, drafter=drafter)
        return decoding.memory_required() - target.codec.working_bytes(32 * 32)

    assert slots_bytes(torch.float64) == 2 * slots_bytes(torch.float32)


def test_inference_mode_is_off_between_rounds(models):
    target, _ = models
    for _ in new_decoding(target, [target.encode_prompt("x")], drafting=Drafting(PLAIN)):
        assert not torch.is_inference_mode_enabled()


def test_the_cost_profile_is_chosen_when_decoding_starts(models, monkeypatch):
    """ComfyUI moves weights to the GPU after a node has created the decoding. Here, their dtype changes instead."""
    target = copy.deepcopy(models[0])
    names = []

    class Recording(POLICIES["eagle2"]):
        chooses = True

        def __init__(self, context):
            super().__init__(context)
            names.append(context.profile.name)

    monkeypatch.setitem(POLICIES, "recording", Recording)
    prompt = target.encode_prompt("a cat")
    decoding = new_decoding(target, [prompt], drafting=Drafting("recording"), drafter=load_drafter("jacobi", target))
    target.decoder.set_dtype(torch.bfloat16)
    with closing(iter(decoding)) as rounds:
        next(rounds)
    assert "bfloat16" in names[-1] and decoding.trace.speedup is None, "its shapes name no mode"


@pytest.mark.parametrize(
    "prompts, options, key, values",
    [
        ([], {}, "batch_size.too_small", {"batch_size": 0}),
        ([], {"drafting": Drafting(PLAIN)}, "batch_size.too_small", {"batch_size": 0}),
        ([[0]], {"drafting": Drafting(PLAIN), "batch_size": 0}, "batch_size.too_small", {"batch_size": 0}),
        ([[0]], {}, "method.needs_drafter", {}),
        # A negative prompt for one of two images would guide both images by the wrong rows.
        ([[0], [0]], {"drafting": Drafting(PLAIN), "negatives": [[0]]}, "request.lengths", {"count": 1, "images": 2}),
    ],
)
def test_invalid_requests(models, prompts, options, key, values):
    with raises_key(key, **values):
        new_decoding(models[0], prompts, **options)
