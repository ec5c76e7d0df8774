"""Half precision, which GPUs use: drafting leaves every image as it is, to the last token."""

from functools import cache
from unittest import mock

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.models import exact
from adt_lab.benchmark import sources
from tests.drafted import METHODS, run
from tests.layouts import llamagen
from tests.layouts.emu3 import write_emu3
from tests.layouts.janus import write_janus
from tests.layouts.lumina import write_lumina

PROMPTS = ("a cat", "three small dogs", "fog")


@pytest.fixture(scope="module")
def half(tiny):
    """By dtype and kind of weights: the tiny target, and its drafters by source."""

    @cache
    def load(dtype, weights=None):
        target = load_target(tiny / "target", dtype=dtype, weights=weights)
        return target, sources(load_drafter(tiny / "drafter", target))

    return load


def sampling(temperature=1.0, guidance=3.0, seed=5):
    return Sampling(seed=seed, temperature=temperature, guidance=guidance)


@pytest.mark.parametrize(
    "dtype, temperature, guidance",
    [(torch.bfloat16, 1, 3), (torch.bfloat16, 0, 1), (torch.float16, 1, 1), (torch.float16, 0, 3)],
    ids=str,
)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_tokens_of_plain_decoding(half, name, dtype, temperature, guidance):
    target, drafters = half(dtype)
    source, options = METHODS[name]
    how = dict(prompts=PROMPTS, sampling=sampling(temperature, guidance))
    drafted = run(target, drafters[source], drafting=Drafting(**options), **how)
    assert drafted.codes.equal(run(target, **how).codes)
    assert "auto" in name or any(share.accepted for round in drafted.trace.rounds for share in round.images)


@pytest.mark.parametrize("weights, dtype", [("int8", torch.bfloat16), ("fp8", torch.float16)], ids=str)
@pytest.mark.parametrize("name", ["adt-tree", "jacobi", "merged"])
def test_weights_of_a_byte(half, name, weights, dtype):
    target, drafters = half(dtype, weights)
    source, options = METHODS[name]
    drafted = run(target, drafters[source], PROMPTS, drafting=Drafting(**options), sampling=sampling())
    assert drafted.codes.equal(run(target, prompts=PROMPTS, sampling=sampling()).codes)


@pytest.mark.parametrize("name", ["autoregressive", "adt-tree", "jacobi", "merged"])
def test_images_that_come_and_go_are_those_drawn_alone(half, name):
    """So neither the number of images at work counts, nor how far apart they are, nor the longest prompt."""
    target, drafters = half(torch.bfloat16)
    source, options = METHODS.get(name, ("jacobi", {"method": name}))
    how = dict(sampling=sampling(), drafting=Drafting(**options))
    together = run(target, drafters[source], PROMPTS, at_once=2, **how).codes
    for codes, prompt in zip(together, PROMPTS):
        assert codes.equal(run(target, prompts=(prompt,), sampling=sampling()).codes[0])


@pytest.mark.parametrize("kept", [1, 5, 11])
@pytest.mark.parametrize("name", ["autoregressive", "adt-tree", "merged"])
def test_the_beginning_of_an_image_leads_to_that_image(half, name, kept):
    """Kept tokens are read in other forwards than they were drawn in."""
    target, drafters = half(torch.float16)
    whole = run(target, prompts=PROMPTS, sampling=sampling()).codes
    source, options = METHODS.get(name, ("jacobi", {"method": name}))
    how = dict(sampling=sampling(), drafting=Drafting(**options))
    assert run(target, drafters[source], PROMPTS, prefix=whole[:, :kept], **how).codes.equal(whole)


def _llamagen(folder, dtype):
    llamagen.write_upstream(folder)
    return load_target(folder / llamagen.NAMES[16], dtype=dtype)


FAMILIES = {
    "lumina": lambda folder, dtype: load_target(write_lumina(folder / "Lumina-mGPT-768", scale=3.0), dtype=dtype).sized(
        96, 64
    ),
    "emu3": lambda folder, dtype: load_target(write_emu3(folder / "emu3"), dtype=dtype).sized(48, 40),
    "janus": lambda folder, dtype: load_target(write_janus(folder / "janus", image_size=128), dtype=dtype),
    "llamagen": _llamagen,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tmp_path, family):
    target = FAMILIES[family](tmp_path, torch.bfloat16)
    expected = run(target, sampling=sampling(), prompts=PROMPTS[:2]).codes
    for width in (1, 3):
        window = Drafting(method="eagle2", depth=12, width=width, nodes=16)
        drafted = run(target, load_drafter("jacobi", target), PROMPTS[:2], drafting=window, sampling=sampling())
        assert drafted.codes.equal(expected)
        assert any(share.accepted for round in drafted.trace.rounds for share in round.images)


def test_the_trace_says_whether_it_is_exact(half, monkeypatch):
    target, _ = half(torch.bfloat16)
    assert run(target).trace.settings["exact"] is True
    monkeypatch.setattr(target.decoder, "exact", False)
    assert run(target).trace.settings["exact"] is False


def test_a_lack_of_memory_is_not_taken_for_a_missing_kernel(monkeypatch):
    """Tried again, there is one, and else all keys would be added in float64 for the rest of the process."""
    full = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(exact, "far_attention", mock.Mock(side_effect=[full, None]))
    model = torch.device("cpu"), torch.bfloat16, 64
    exact.near_on.cache_clear()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        exact.near_on(*model)
    assert exact.near_on(*model) == exact.NEAR
    exact.near_on.cache_clear()


def test_a_model_asks_for_the_kernel_of_its_own_kind(half, monkeypatch):
    """Older GPUs have it in float16 and not in bfloat16."""
    asked = []
    monkeypatch.setattr("adt_core.engine.task.near_on", lambda *model: asked.append(model))
    target, _ = half(torch.float16)
    run(target)
    assert set(asked) == {(torch.device("cpu"), torch.float16, target.decoder.config.head_dim)}
