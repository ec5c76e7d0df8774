"""The exact mode is tried on the very weights: whatever breaks it on a device is found, and named."""

import json

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import decode
from adt_core.engine.device import invariance
from adt_core.engine.device.invariance import CHAIN, COLUMNS, COMPANY, TREE
from adt_core.engine.request import Request
from adt_core.models import layers
from adt_core.models.batch_invariance import NEAR_WINDOW, TILE, FallbackConfig
from adt_core.models.rows import BatchRows
from adt_core.policies import PLAIN
from adt_core.runtime import new_runtime


@pytest.fixture(scope="module", params=["bfloat16", pytest.param("int8", marks=pytest.mark.long)])
def target(request):
    weights = None if request.param == "bfloat16" else request.param
    return load_target(dtype=torch.bfloat16, weights=weights)


@pytest.fixture(scope="module")
def half():
    return load_target(dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def nothing_known(runtime, monkeypatch, tmp_path):
    """As on a machine that has drawn nothing yet."""
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))


def decoding_of(target, guidance: float = 2.0, drafter=None) -> Decoding:
    """The last 12 tokens of an image."""
    drafting = Drafting("eagle2", depth=8, width=3, nodes=16) if drafter else Drafting(PLAIN)
    sampling = Sampling(seed=3, guidance=guidance)
    rows = [target.encode_prompt("a red house")]
    kept = torch.randint(target.num_codes, (1, target.length - 12), generator=torch.Generator().manual_seed(1))
    return Decoding(target, rows, sampling=sampling, drafting=drafting, drafter=drafter, prefix=kept)


def differences(target, guidance: float = 2.0) -> list[str]:
    return invariance.differences(decoding_of(target, guidance).request)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_here_tokens_are_read_alike_in_every_forward(target, guidance):
    assert differences(target, guidance) == []


def test_without_the_exact_mode_nothing_is_tried():
    assert differences(load_target()) == []
    assert differences(load_target(dtype=torch.bfloat16, exact=False)) == []


def test_a_product_that_depends_on_a_rows_place_is_found(target, monkeypatch):
    product = layers.product

    def by_place(x, *args, **options):
        y = product(x, *args, **options)
        if y.ndim == 2 and len(y) > 1:
            y[len(y) // 2 :] *= 1 + 2**-7  # the last bit of a number in bfloat16
        return y

    monkeypatch.setattr(layers, "product", by_place)
    assert {CHAIN, TREE} <= set(differences(target))


def test_attention_to_which_hidden_keys_show_is_found(target, monkeypatch):
    near_attention = layers.near_attention

    def leaky(q, near, mask, far):
        hidden = mask.isinf().double().mean(-1).view(*q.shape[:3], 1)
        return near_attention(q, near, mask, far) * (1 + hidden)

    monkeypatch.setattr(layers, "near_attention", leaky)
    assert TREE in differences(target)


def test_attention_that_depends_on_how_many_columns_it_goes_through_is_found(target, monkeypatch):
    near_attention = layers.near_attention
    monkeypatch.setattr(
        layers, "near_attention", lambda q, near, *rest: near_attention(q, near, *rest) * (1 + near.shape[3] * 2**-12)
    )
    assert COLUMNS in differences(target)


def test_padding_that_shows_is_found(target, monkeypatch):
    prefill = BatchRows.prefill

    def shifted(rows):
        step = prefill(rows)
        step.positions += (rows.pads > 0)[:, None]  # of the image whose prompt is the shorter one
        return step

    monkeypatch.setattr(BatchRows, "prefill", shifted)
    assert COMPANY in differences(target)


def test_what_is_tried_are_the_first_layers_of_the_very_weights(target):
    alike = invariance.first_layers(target)
    assert len(alike.decoder.layers) == invariance.TRIAL_LAYERS and len(target.decoder.layers) > invariance.TRIAL_LAYERS
    assert alike.decoder.layers[0] is target.decoder.layers[0] and alike.decoder.head is target.decoder.head


def broken(monkeypatch, wrong) -> None:
    """Products are off by a bit in the rows at which ``wrong`` (their numbers, rows of a product) is true."""
    product = layers.product

    def by_place(x, weight, scale=None, plus=None, tile=0):
        y = product(x, weight, scale, plus, tile)
        return y.mul_(torch.where(wrong(torch.arange(len(y)), tile), 1 + 2**-7, 1)[:, None])

    monkeypatch.setattr(layers, "product", by_place)


def draw(target) -> tuple[Decoding, Decoding]:
    """An image with drafts, and the same without, whose tokens it must have."""
    drafted, plain = (
        decode(decoding_of(target, drafter=drafter)) for drafter in (load_drafter("jacobi", target), None)
    )
    assert drafted.codes.equal(plain.codes) and drafted.exact == plain.exact
    return drafted, plain


def odd_by_rows(number, tile):
    """Rows of a product of more than one have other bits, but for the first."""
    return number % max(tile, 1) > 0


def test_products_of_fewer_rows_take_the_place_of_those_that_are_not_exact(target, monkeypatch, caplog):
    """Plain images have them, too: a drafted image is the plain one."""
    broken(monkeypatch, odd_by_rows)
    drafted, _ = draw(target)
    assert drafted.exact.fallback == FallbackConfig(tile=1, far=True) and drafted.trace.report()["tau"] > 1
    assert (
        drafted.exact.remark
        == "To keep the image unchanged, this device uses smaller matrix products, which is slower."
    )
    assert caplog.text.count(drafted.exact.remark) == 1


@pytest.fixture
def far_keys(monkeypatch):
    """Far keys go through a kernel, as on a GPU. What it gives is multiplied by a function of the number of queries."""

    def attention(wrong=lambda queries: 1.0):
        def kernel(q, keys, values, mask):
            scores = q.double() @ keys.double().mT * q.shape[-1] ** -0.5 + mask.double()
            return (scores.softmax(-1) @ values.double() * wrong(q.shape[2])).to(q.dtype), scores.logsumexp(-1).float()

        monkeypatch.setattr(Request, "replayed", True)  # prompts are padded as on a GPU
        monkeypatch.setattr("adt_core.engine.request.near_window", lambda *model: NEAR_WINDOW)
        monkeypatch.setattr(layers, "far_attention", kernel)

    return attention


def by_queries(queries):
    return 1 + queries * 2**-7


def test_a_kernel_for_far_keys_that_is_exact_is_used(half, far_keys):
    far_keys()
    assert draw(half)[0].exact == invariance.InvarianceReport()


def test_attention_goes_without_a_kernel_that_is_not_exact(half, far_keys, caplog):
    far_keys(by_queries)
    drafted, _ = draw(half)
    assert drafted.exact.fallback == FallbackConfig(TILE["cpu"], far=False) and drafted.trace.report()["tau"] > 1
    remark = "To keep the image unchanged, this device uses attention without the fast kernel, which is slower."
    assert drafted.exact.remark == remark and caplog.text.count(remark) == 1


def test_products_and_attention_may_both_have_to_be_replaced(half, far_keys, monkeypatch):
    far_keys(by_queries)
    broken(monkeypatch, odd_by_rows)
    drafted, _ = draw(half)
    assert drafted.exact.fallback == FallbackConfig(tile=1, far=False) and drafted.trace.report()["tau"] > 1
    assert "smaller matrix products and attention without the fast kernel" in drafted.exact.remark


def test_where_company_shows_alone_nothing_is_switched_off(half, monkeypatch, caplog):
    """No part that could be done without is to blame; so the image stays the plain one, and the sentence is said."""
    prefill = BatchRows.prefill

    def shifted(rows):
        step = prefill(rows)
        step.positions += (rows.pads > 0)[:, None] & (rows.images > 1)
        return step

    monkeypatch.setattr(BatchRows, "prefill", shifted)
    drafted, _ = draw(half)
    remark = (
        "On this device, an image may depend on the other prompts in its batch; use a batch size of 1 to avoid this."
    )
    assert drafted.exact == invariance.InvarianceReport(differing=(COMPANY,), remark=remark)
    assert drafted.trace.report()["tau"] > 1 and caplog.text.count(remark) == 1


def test_where_nothing_helps_nothing_is_drafted(target, monkeypatch, caplog):
    broken(monkeypatch, lambda number, tile: number > 0)
    drafted, _ = draw(target)
    assert not drafted.exact.drafts and drafted.exact.fallback is None and drafted.trace.report()["tau"] == 1
    assert "so drafting is off" in drafted.exact.remark and caplog.text.count(drafted.exact.remark) == 1


@pytest.mark.parametrize("dtype, exact", [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True)])
def test_a_device_without_the_mode_is_told_where_somebody_relies_on_it(monkeypatch, caplog, dtype, exact):
    """Such as Apple's GPUs. Drafts stay, because a device may be exact all the same."""
    monkeypatch.setattr("adt_core.models.batch_invariance.TILE", {})
    target = load_target(dtype=dtype, exact=exact)
    drafted = decode(decoding_of(target, drafter=load_drafter("jacobi", target)))
    expected = invariance.NO_MODE if dtype == torch.bfloat16 and exact else invariance.InvarianceReport()
    assert drafted.exact == expected and drafted.trace.report()["tau"] > 1
    assert caplog.text.count("has no batch-invariant mode") == bool(expected.remark)


def test_where_all_is_well_nothing_is_said(target):
    assert decode(decoding_of(target)).exact == invariance.InvarianceReport()


def test_a_verdict_is_remembered_for_the_weights_and_what_they_are_multiplied_by(target, monkeypatch, tmp_path):
    """By the next process, too. A file that says something else counts for nothing."""
    request, tries = decoding_of(target).request, []
    found = invariance.InvarianceReport(invariance.FallbackConfig(1), True, (CHAIN, TREE), "This device is slow.")
    monkeypatch.setattr(invariance, "_run_trial", lambda request: tries.append(request) or found)

    def settled():
        with new_runtime():
            return invariance.invariance_report(request)

    assert settled() == settled() == found and len(tries) == 1
    (file,) = tmp_path.glob("exact-*.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["verdict"]["trust"] = [99, True]
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert settled() == found and len(tries) == 2
    with monkeypatch.context() as patch:
        patch.setattr(invariance, "reduced_precision_settings", lambda: ["TF32"])
        assert settled() == found and len(tries) == 3
        patch.setattr(target.decoder.layers[0], "down", torch.nn.Parameter(-target.decoder.layers[0].down, False))
        assert settled() == found and len(tries) == 4


def test_the_trial_can_be_cancelled(target):
    class Cancelled(Exception):
        pass

    def cancel():
        raise Cancelled

    decoding = Decoding(target, [target.encode_prompt("a red house")], drafting=Drafting(PLAIN), check=cancel)
    with pytest.raises(Cancelled):
        invariance.differences(decoding.request)
