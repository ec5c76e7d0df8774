"""Tests of the prompts, sizes and images of every family."""

from copy import deepcopy
from functools import cache

import pytest
import torch

from adt_core import Drafting, Lantern, load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.models.families.emu3 import NEGATIVE
from tests.drafted import run
from tests.layouts import janus
from tests.layouts.edits import write_one_file
from tests.layouts.families import WRITERS, load_small, write_network
from tests.layouts.tokens import spelled
from tests.raising import raises_key


@pytest.fixture(scope="module")
def models(written, tmp_path_factory):
    """Return a dict: family -> (target in float64, folder with a drafter for the target)."""

    @cache
    def load(family):
        target = load_small(family, written(family), dtype=torch.float64)
        return target, write_network(family, tmp_path_factory.mktemp(f"{family}-network"), target)

    return load


# ---- prompts and sizes ---------------------------------------------------------------------------


def test_janus_prompt_is_the_published_conversation(models):
    """In the unconditional row, padding replaces all tokens except the first and the last one."""
    target, _ = models("janus")
    prompt = target.encode_prompt("  a cat\n")
    ids = target.prompter.vocabulary
    expected = f"{janus.BOS}<|User|>:acat\n\n<|Assistant|>:{janus.BEGIN_IMAGE}"
    assert spelled(target, prompt).replace(" ", "") == expected
    assert target.prompter.tokenizer.token_to_id("<|User|>") in prompt
    padding = [ids[janus.PAD]] * (len(prompt) - 2)
    assert target.unconditional(prompt) == [ids[janus.BOS], *padding, ids[janus.BEGIN_IMAGE]]


def test_emu3_prompt_contains_the_grid(models):
    target, _ = models("emu3")
    prompt = target.encode_prompt(" a cat\n")
    assert spelled(target, prompt).replace(" ", "") == "<|extra_203|>acat<|imagestart|>5*6<|imagetoken|>"
    assert prompt[-1] == target.prompter.tokenizer.token_to_id("<|image token|>"), "the tag must be one token"
    assert target.unconditional(prompt) == target.encode_prompt(NEGATIVE)


def test_lumina_prompt_contains_the_size(models):
    """Height and width are in steps of 32 pixels. The unconditional row has the last three tokens of the prompt."""
    target, _ = models("lumina")
    prompt = target.encode_prompt("a cat")
    ids = target.prompter.vocabulary
    header = [ids["<racm3:break>"], ids["<reserved08802>"], ids["<reserved08803>"]]
    assert prompt[0] == ids["<s>"] and prompt[-4:] == [ids["<reserved08706>"], *header]
    assert spelled(target, prompt[1:-4]) == "Generate an image of 96x64 according to the following prompt:\na cat"
    assert target.unconditional(prompt) == header


@pytest.mark.parametrize(
    "family, text, key",
    [
        *((family, " \n", "prompt.empty") for family in WRITERS),
        ("chameleon", "x" * 400, "prompt.too_long"),
        ("janus", "x" * 200, "prompt.too_long"),
        ("emu3", "x" * 9200, "prompt.too_long"),
        ("llamagen", "狐狸", "prompt.no_words"),
    ],
)
def test_unreadable_prompts(models, family, text, key):
    with raises_key(key):
        models(family)[0].encode_prompt(text)


@pytest.mark.parametrize(
    "family, size, reason",
    [
        ("janus", (128, 64), "limit.fixed"),
        ("emu3", (44, 40), "both sides must be multiples of 8"),
        ("emu3", (1024, 1024), "as many tokens as 90 x 90"),
        ("emu3", (0, 8), "limit.one_token"),
        ("lumina", (100, 64), "limit.multiples"),
        ("lumina", (48, 64), "multiples of 32"),
        ("lumina", (32, 160), "4 times"),
        ("lumina", (1024, 1024), "limit.too_many_pixels"),
        ("lumina-mgpt-2", (48, 64), "multiples of 32"),
        ("lumina-mgpt-2", (800, 768), "no more pixels than 768x768"),
        ("liquid", (512, 256), "limit.fixed"),
        ("glm-image", (48, 64), "multiples of 32"),
        ("glm-image", (2080, 1024), "from 32 to 2048 pixels"),
    ],
)
def test_unsupported_sizes(models, family, size, reason):
    with raises_key("size.unsupported", size=f"{size[0]}x{size[1]}", problem=reason):
        models(family)[0].sized(*size)


def test_emu3_supports_a_wide_image_with_as_many_pixels(models):
    """The size is 16:9, rounded as in the published example."""
    assert models("emu3")[0].sized(960, 544).grid == (68, 120)


# ---- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [None, "network", "jacobi", "network+jacobi"])
@pytest.mark.parametrize(
    "family", [name if name == "lumina" else pytest.param(name, marks=pytest.mark.long) for name in WRITERS]
)
def test_rows_end_correctly_under_relaxed_acceptance(models, family, drafter):
    target, network = models(family)
    how = {"lantern": Lantern(neighbours=39, delta=1.0), "drafting": Drafting("adt-tree")} if drafter else {}
    drawn = run(target, drafter and load_drafter(drafter.replace("network", str(network)), target), **how)
    (rows, columns) = target.grid
    cells = drawn.grid_codes()
    assert drawn.codes.shape == (2, target.length) and target.columns == columns + target.row_end
    assert target.row_end is (family in ("lumina", "lumina-mgpt-2", "emu3"))
    assert (0 <= cells).all() and (cells < 40).all()
    assert not target.row_end or (drawn.codes.view(2, rows, -1)[..., -1] == 40).all()
    side = target.downsample
    assert target.codec.decode(cells).shape == (2, 3, rows * side, columns * side)
    assert (drawn.trace.report()["substitution_rate"] > 0) is (drafter is not None)


@pytest.mark.parametrize("drafter", [None, "jacobi"])
@pytest.mark.parametrize("bias", [-1000.0, 1000.0])
def test_the_grammar_decides_where_rows_end(models, bias, drafter):
    """The token that ends a row has the logit 0. A bias makes all codes much less probable than it, or much more."""
    target = deepcopy(models("lumina")[0])
    target.decoder.head_bias = torch.nn.Parameter(torch.full((target.num_codes,), bias, dtype=torch.float64))
    drawn = run(target, drafter and load_drafter(drafter, target))
    ends = drawn.codes == target.num_codes
    expected = torch.arange(target.length) % target.columns == target.columns - 1
    assert torch.equal(ends, expected.expand_as(ends))


def test_kept_tokens_are_counted_in_codes(models):
    """Lumina's image has 28 tokens: 24 codes and 4 end-of-row tokens. A prefix of 26 codes must be refused."""
    target, _ = models("lumina")
    assert run(target, kept=torch.zeros(2, 24, dtype=torch.long)).grid_codes().eq(0).all()
    with raises_key("kept.shape", shape="[2, 26]", images=2, most=24):
        run(target, kept=torch.zeros(2, 26, dtype=torch.long))


def test_emu3_codec_works_after_cancellation(models):
    codec = models("emu3")[0].codec
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 20:
            raise InterruptedError

    codes = torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(InterruptedError):
        codec.decode(codes, check)
    assert codec.decode(codes).shape == (1, 3, 16, 16) and len(calls) == 20


@pytest.mark.parametrize("family", WRITERS)
def test_loading_does_not_change_the_global_random_state(written, family):
    state = torch.get_rng_state()
    load_target(written(family))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", ["chameleon", "janus", "emu3"])
def test_a_model_in_one_file(written, tmp_path, family):
    """The file contains configuration and tokenizer as tensors of bytes."""
    folder = written(family)
    file = write_one_file(folder, folder / "tokenizer.json", tmp_path / "one.safetensors")
    one = load_target(file)
    reference = load_target(folder)
    assert one.family == family and one.encode_prompt("a cat") == reference.encode_prompt("a cat")
    for found, expected in ((one.decoder, reference.decoder), (one.codec, reference.codec)):
        pairs = zip(found.state_dict().values(), expected.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert inspect(str(file))[0]["left_over"] == []
