"""Emu3-Gen: lossless with every drafter; prompts and sizes; the codec; what is said of files that are wrong."""

import json

import pytest
import torch

from adt_core import AdtError, Lantern, Sampling, load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.models.families.emu3 import NEGATIVE
from adt_core.policies import Drafting
from tests.drafted import METHODS, run, write_drafter
from tests.layouts.emu3 import CODES, read_config, write_emu3
from tests.layouts.tokens import spelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("emu3")
    write_emu3(home / "target")
    write_drafter(home / "network", load_target(home / "target"))
    return home


@pytest.fixture(scope="module")
def target(folder):
    """5 rows of 6 cells and an end: 35 tokens."""
    return load_target(folder / "target", dtype=torch.float64).sized(48, 40)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_tokens_of_plain_decoding(folder, target, name, temperature):
    source, drafting = METHODS[name]
    sampling = Sampling(seed=3, temperature=temperature, top_k=30)
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, sampling=sampling, drafting=Drafting(**drafting))
    assert torch.equal(drafted.codes, run(target, sampling=sampling).codes)
    assert "auto" in name or any(share.accepted for round in drafted.trace.rounds for share in round.images)


def test_a_quantised_model_is_as_lossless(folder):
    target = load_target(folder / "target", dtype=torch.float64, weights="int8").sized(48, 40)
    drafted = run(
        target, load_drafter("jacobi", target), sampling=Sampling(seed=3), drafting=Drafting(**METHODS["jacobi"][1])
    )
    assert torch.equal(drafted.codes, run(target, sampling=Sampling(seed=3)).codes)


@pytest.mark.parametrize("source", ["network", "jacobi", "network+jacobi"])
def test_rows_end_where_they_must_under_relaxed_acceptance(folder, target, source):
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, drafting=Drafting("adt-tree"), lantern=Lantern(neighbours=CODES - 1, delta=1.0))
    tokens = drafted.codes.view(2, 5, 7)
    assert (tokens[..., -1] == CODES).all() and (tokens[..., :-1] < CODES).all()
    assert drafted.trace.report()["substitution_rate"] > 0
    assert target.codec.decode(drafted.grid_codes()).shape == (2, 3, 40, 48)


def test_the_prompt_names_the_grid(target):
    prompt, tokenizer = target.encode_prompt(" a cat\n"), target.prompter.tokenizer
    assert spelled(target, prompt).replace(" ", "") == "<|extra_203|>acat<|imagestart|>5*6<|imagetoken|>"
    assert prompt[-1] == tokenizer.token_to_id("<|image token|>"), "one token"
    assert target.unconditional(prompt) == target.encode_prompt(NEGATIVE)


def test_prompts_and_sizes_that_are_refused(folder, target):
    with pytest.raises(AdtError, match="prompt is empty"):
        target.encode_prompt("")
    with pytest.raises(AdtError, match="has room for 9178; shorten it"):
        target.encode_prompt("x" * 9200)
    whole = load_target(folder / "target")
    assert whole.grid == (90, 90) and whole.sized(960, 544).grid == (68, 120), (
        "16:9, rounded as the published example does"
    )
    for size, reason in (
        ((44, 40), "both sides must be multiples of 8"),
        ((1024, 1024), "a grid of 90 x 90"),
        ((0, 8), "one token at least"),
    ):
        with pytest.raises(AdtError, match=f"size is {size[0]}x{size[1]}.*{reason}"):
            whole.sized(*size)


def test_the_codec_can_be_cancelled_and_forgets_it(target):
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 20:
            raise InterruptedError

    codes = torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(InterruptedError):
        target.codec.decode(codes, check)
    assert target.codec.decode(codes).shape == (1, 3, 16, 16) and len(calls) == 20


def test_loading_leaves_the_random_numbers_of_others_alone(folder):
    state = torch.get_rng_state()
    load_target(folder / "target")
    assert torch.equal(torch.get_rng_state(), state)


def test_inspect(folder):
    (found,) = inspect(str(folder / "target"))
    assert (found["family"], found["grid"], found["pixels"], found["codebook"]) == (
        "emu3",
        [90, 90],
        [720, 720],
        [CODES, 4],
    )
    assert found["missing"] == found["wrong_shape"] == found["left_over"] == found["to_do"] == []


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path):
    folder = write_emu3(tmp_path / "target")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(AdtError, match="lacks model-00002-of-00002.safetensors"):
        load_target(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(AdtError, match="lacks model-00002-of-00002.safetensors; download"):
        load_target(folder)
    (folder / "model-00001-of-00002.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(AdtError, match=r"lacks the tensor '(text_model|vqmodel)\..* and \d+ more"):
        load_target(folder)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda config: config["text_config"].update(intermediate_size=80),
            r"mlp.gate_proj.weight has shape \(96, 64\), but \(80, 64\) was expected",
        ),
        (lambda config: config["vocabulary_map"].pop("<|extra_200|>"), r"vocabulary_map lacks <\|extra_200\|>"),
        (
            lambda config: config["vocabulary_map"].pop("<|visual token 000007|>"),
            "does not name image tokens 0 to n - 1",
        ),
        (
            lambda config: config["vq_config"].update(codebook_size=50),
            "names 40 image tokens, but its vq_config 50 codes",
        ),
        (lambda config: config.pop("text_config"), "config.json has no text_config"),
        (lambda config: config.pop("vq_config"), "config.json has no vq_config"),
    ],
)
def test_configurations_that_are_wrong(tmp_path, change, message):
    folder = write_emu3(tmp_path / "target")
    config = read_config(folder)
    change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(AdtError, match=message):
        load_target(folder)


def test_no_tokenizer(tmp_path):
    folder = write_emu3(tmp_path / "target")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(AdtError, match="has no tokenizer.json"):
        load_target(folder)
