"""Tests of the invariance check, which runs before the batch-invariant mode is used.

In this mode, the features of a token have the same bits in every forward pass. The check must detect each kind of
violation and choose the fastest fallback that is sufficient. Far keys are keys more than 32 positions back.
"""

import json
from unittest.mock import Mock

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.engine.device import invariance
from adt_core.engine.device.invariance import CHAIN, COLUMNS, COMPANY, TREE
from adt_core.engine.request import Request
from adt_core.kernels import attend
from adt_core.kernels.choice import KernelError
from adt_core.kernels.verdicts import Verdict
from adt_core.models import layers
from adt_core.models.batch_invariance import NEAR_WINDOW, TILE, FallbackConfig
from adt_core.models.rows import BatchRows
from adt_core.policies import PLAIN
from adt_core.runtime import new_runtime
from tests.drafted import new_decoding


@pytest.fixture(scope="module", params=["bfloat16", pytest.param("int8", marks=pytest.mark.long)])
def target(request):
    weights = None if request.param == "bfloat16" else request.param
    return load_target(dtype=torch.bfloat16, weights=weights)


@pytest.fixture(scope="module")
def half():
    return load_target(dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def new_machine(runtime, monkeypatch, tmp_path):
    """Emulate a new process with an empty cache folder."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))


def decoding_of(target, guidance: float = 2.0, drafter=None) -> Decoding:
    """Return a decoding that generates the last 12 tokens of an image."""
    drafting = Drafting("eagle2", depth=8, width=3, drafts=16) if drafter else Drafting(PLAIN)
    sampling = Sampling(seed=3, guidance_scale=guidance)
    rows = [target.encode_prompt("a red house")]
    kept = torch.randint(target.num_codes, (1, target.length - 12), generator=torch.Generator().manual_seed(1))
    return new_decoding(target, rows, sampling=sampling, drafting=drafting, drafter=drafter, kept=kept)


def differences(target, guidance: float = 2.0) -> list[str]:
    return invariance.differences(decoding_of(target, guidance).request)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_features_are_equal_in_every_forward_on_this_machine(target, guidance):
    assert differences(target, guidance) == []


def test_there_is_no_trial_without_the_batch_invariant_mode():
    assert differences(load_target()) == []
    assert differences(load_target(dtype=torch.bfloat16, exact=False)) == []


def test_a_product_that_depends_on_the_row_index_is_detected(target, monkeypatch):
    product = layers.product

    def by_place(x, *args, **options):
        y = product(x, *args, **options)
        if y.ndim == 2 and len(y) > 1:
            y[len(y) // 2 :] *= 1 + 2**-7  # changes the last bit in bfloat16
        return y

    monkeypatch.setattr(layers, "product", by_place)
    assert {CHAIN, TREE} <= set(differences(target))


def test_attention_that_depends_on_masked_keys_is_detected(target, monkeypatch):
    near_attention = attend.near_attention

    def leaky(q, near, mask, far):
        hidden = mask.isinf().double().mean(-1).view(*q.shape[:3], 1)
        return near_attention(q, near, mask, far) * (1 + hidden)

    monkeypatch.setattr(attend, "near_attention", leaky)
    assert TREE in differences(target)


def test_attention_that_depends_on_the_number_of_cache_positions_is_detected(target, monkeypatch):
    near_attention = attend.near_attention
    monkeypatch.setattr(
        attend, "near_attention", lambda q, near, *rest: near_attention(q, near, *rest) * (1 + near.shape[3] * 2**-12)
    )
    assert COLUMNS in differences(target)


def shift_positions(monkeypatch, is_shifted) -> None:
    """Increase the positions of the prompts in the rows [R] that ``is_shifted(rows)`` selects."""
    prefill = BatchRows.prefill

    def shifted(rows):
        step = prefill(rows)
        step.positions += is_shifted(rows)[:, None]
        return step

    monkeypatch.setattr(BatchRows, "prefill", shifted)


def test_features_that_depend_on_padding_are_detected(target, monkeypatch):
    shift_positions(monkeypatch, lambda rows: rows.pads > 0)  # changes only the image with the shorter prompt
    assert COMPANY in differences(target)


def test_the_trial_uses_the_first_layers_of_the_loaded_weights(target):
    copied = invariance.first_layers(target)
    assert len(copied.decoder.layers) == invariance.TRIAL_LAYERS < len(target.decoder.layers)
    assert copied.decoder.layers[0] is target.decoder.layers[0] and copied.decoder.head is target.decoder.head


def break_products(monkeypatch, is_wrong) -> None:
    """Change one bit in rows of products where ``is_wrong(row index, number of rows)``."""
    product = layers.product

    def by_place(x, weight, scale=None, plus=None, tile=0, tokens=None):
        y = product(x, weight, scale, plus, tile, tokens)
        return y.mul_(torch.where(is_wrong(torch.arange(len(y)), tile), 1 + 2**-7, 1)[:, None])

    monkeypatch.setattr(layers, "product", by_place)


def decode_both(target) -> tuple[Decoding, Decoding]:
    """Decode an image with drafts and without. Check that the tokens are equal, and return both decodings."""
    drafted, plain = (decoding_of(target, drafter=drafter).run() for drafter in (load_drafter("jacobi", target), None))
    assert drafted.codes.equal(plain.codes) and drafted.invariance == plain.invariance
    return drafted, plain


def all_but_first_row(index, tile):
    """Select the rows after the first row of each product."""
    return index % max(tile, 1) > 0


def test_smaller_products_replace_products_that_are_not_batch_invariant(target, monkeypatch, caplog):
    """Plain decoding must use the smaller products, too. Otherwise, a drafted image would differ from it."""
    break_products(monkeypatch, all_but_first_row)
    drafted, _ = decode_both(target)
    assert drafted.invariance.fallback == FallbackConfig(tile=1, far=True) and drafted.trace.report()["tau"] > 1
    expected = "To keep the image unchanged, this device uses smaller matrix products, which is slower."
    assert drafted.invariance.remark == expected
    assert caplog.text.count(drafted.invariance.remark) == 1


@pytest.fixture
def far_keys(monkeypatch):
    """Emulate a GPU kernel for far keys. Its output is multiplied by a function of the number of queries."""

    def attention(factor=lambda queries: 1.0):
        def kernel(q, keys, values, mask):
            scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
            return (scores.softmax(-1) @ values.double() * factor(q.shape[2])).to(q.dtype), scores.logsumexp(-1).float()

        monkeypatch.setattr(Request, "replayed", True)  # prompts are padded as on a GPU
        monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: NEAR_WINDOW)
        monkeypatch.setattr(attend, "far_attention", kernel)

    return attention


def growing_factor(queries):
    return 1 + queries * 2**-7


def test_a_batch_invariant_kernel_for_far_keys_is_used(half, far_keys):
    far_keys()
    assert decode_both(half)[0].invariance == invariance.InvarianceReport()


def test_a_kernel_for_far_keys_that_is_not_batch_invariant_is_not_used(half, far_keys, caplog):
    far_keys(growing_factor)
    drafted, _ = decode_both(half)
    assert drafted.invariance.fallback == FallbackConfig(TILE["cpu"], far=False) and drafted.trace.report()["tau"] > 1
    remark = "To keep the image unchanged, this device uses attention without the fast kernel, which is slower."
    assert drafted.invariance.remark == remark and caplog.text.count(remark) == 1


def test_products_and_attention_can_both_be_replaced(half, far_keys, monkeypatch):
    far_keys(growing_factor)
    break_products(monkeypatch, all_but_first_row)
    drafted, _ = decode_both(half)
    assert drafted.invariance.fallback == FallbackConfig(tile=1, far=False) and drafted.trace.report()["tau"] > 1
    assert "smaller matrix products and attention without the fast kernel" in drafted.invariance.remark


def test_an_influence_of_other_prompts_is_reported_without_a_fallback(half, monkeypatch, caplog):
    """No fallback would help. The drafted image must still equal the plain image."""
    shift_positions(monkeypatch, lambda rows: (rows.pads > 0) & (rows.images > 1))
    drafted, _ = decode_both(half)
    remark = (
        "On this device, an image may depend on the other prompts in its batch; use a batch size of 1 to avoid this."
    )
    assert drafted.invariance == invariance.InvarianceReport(differing=(COMPANY,), remark=remark)
    assert drafted.trace.report()["tau"] > 1 and caplog.text.count(remark) == 1


def test_drafting_is_off_if_no_fallback_helps(target, monkeypatch, caplog):
    break_products(monkeypatch, lambda index, tile: index > 0)
    drafted, _ = decode_both(target)
    assert not drafted.invariance.is_drafting and drafted.invariance.fallback is None
    assert drafted.trace.report()["tau"] == 1
    assert "so drafting is off" in drafted.invariance.remark and caplog.text.count(drafted.invariance.remark) == 1


@pytest.mark.parametrize("dtype, exact", [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True)])
def test_a_device_without_the_mode_is_reported_if_it_is_needed(monkeypatch, caplog, dtype, exact):
    """Drafting stays on. A device without the mode, for example an Apple GPU, may be batch-invariant nevertheless."""
    monkeypatch.setattr("adt_core.models.batch_invariance.TILE", {})
    target = load_target(dtype=dtype, exact=exact)
    drafted = decoding_of(target, drafter=load_drafter("jacobi", target)).run()
    expected = invariance.NO_MODE if dtype == torch.bfloat16 and exact else invariance.InvarianceReport()
    assert drafted.invariance == expected and drafted.trace.report()["tau"] > 1
    assert caplog.text.count("has no batch-invariant mode") == bool(expected.remark)


def test_no_remark_without_differences(target):
    assert decoding_of(target).run().invariance == invariance.InvarianceReport()


def test_a_report_is_valid_for_one_choice_of_triton_kernels(target):
    request = decoding_of(target).request
    used = [Verdict(name, "bfloat16, 64", True, "") for name in ("gate", "norm")]
    reports = [(), (used[0],), used, [used[0], used[1]._replace(uses_kernel=False)]]
    names = [invariance.report_name(request, kernels) for kernels in reports]
    assert len(set(names)) == 3 and names[1] == names[3]


def test_kernels_are_off_before_slower_operations_are_tried(target, monkeypatch):
    """PyTorch's usual operations suffice on most devices. The next process needs no new trial."""
    request = decoding_of(target).request
    used = [Verdict("gate", "bfloat16, 64", True, "")]
    trials = []

    def differing(request, fallback=None):
        assert fallback is None, "a fallback is slower than PyTorch's usual operations"
        trials.append(request)
        return [TREE, CHAIN] if len(trials) == 1 else []

    monkeypatch.setattr(invariance, "differences", differing)
    for _ in range(2):
        with new_runtime():
            with pytest.raises(KernelError, match="results differ in a tree and in a chain"):
                invariance.invariance_report(request, used)
            assert invariance.invariance_report(request) == invariance.InvarianceReport()
    assert len(trials) == 2


def test_a_report_is_reused_until_the_weights_or_precision_settings_change(target, monkeypatch, tmp_path):
    """The next process must also use the report. A damaged report must be ignored."""
    request = decoding_of(target).request
    trials = []
    found = invariance.InvarianceReport(invariance.FallbackConfig(1), True, (CHAIN, TREE), "This device is slow.")
    monkeypatch.setattr(invariance, "_run_trial", lambda request, has_kernels: trials.append(request) or found)

    def report_of_new_process():
        with new_runtime():
            return invariance.invariance_report(request)

    assert report_of_new_process() == report_of_new_process() == found and len(trials) == 1
    (file,) = tmp_path.glob("exact-*.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["verdict"]["trust"] = [99, True]
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert report_of_new_process() == found and len(trials) == 2
    with monkeypatch.context() as patch:
        patch.setattr(invariance, "product_settings", lambda: ["TF32"])
        assert report_of_new_process() == found and len(trials) == 3
        patch.setattr(target.decoder.layers[0], "down", torch.nn.Parameter(-target.decoder.layers[0].down, False))
        assert report_of_new_process() == found and len(trials) == 4


def test_the_trial_can_be_cancelled(target):
    cancel = Mock(side_effect=KeyboardInterrupt)
    decoding = new_decoding(target, [target.encode_prompt("a red house")], drafting=Drafting(PLAIN), check=cancel)
    with pytest.raises(KeyboardInterrupt):
        invariance.differences(decoding.request)
