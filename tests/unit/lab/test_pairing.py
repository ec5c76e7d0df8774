"""Tests of the command check-drafter, with drafters that were constructed for one pairing of tokens and features."""

import json

import pytest
import torch

from adt_core import Drafting, Sampling, cli, load_drafter, load_target
from adt_core.drafters.eagle import Pairing
from tests.command import read_json, words
from tests.drafted import run
from tests.layouts.edits import edit_tensors
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

CODES = 40
PAIRINGS = [Pairing(late, codes) for late in (False, True) for codes in (False, True)]


def zero_layers(tensors):
    """Set the output projections to zero. The layers then don't change the residual stream."""
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()


def codes_in(folder):
    """Return the token ids of the image codes in the vocabulary."""
    first = read_json(folder / "config.json")["vocabulary_map"]["IMGIMGAZ"]
    return slice(first, first + CODES)


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """Return a target that counts: its layers are zero, and row c + 1 of its head is the embedding of code c."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("counter") / "target", codes=CODES)
    codes = codes_in(folder)

    def count(tensors):
        zero_layers(tensors)
        tensors["model.norm.weight"].fill_(1)
        tensors["lm_head.weight"][codes] = tensors["model.embed_tokens.weight"][codes].roll(1, 0)

    edit_tensors(folder, count)
    return folder


def plant(counter, folder, pairing):
    """Write a drafter that finds the next feature in its embedding only if its inputs have this pairing."""
    write_tiny_drafter(folder, counter)

    def look_up(tensors):
        zero_layers(tensors)
        embedding = tensors["embed_tokens.weight"]
        width = len(tensors["fc.bias"])
        codes = embedding[codes_in(counter)].clone()
        embedding.zero_()
        place = slice(CODES) if pairing.codes else codes_in(counter)
        embedding[place] = codes.roll(-1, 0) if pairing.late else codes
        tensors["fc.weight"] = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
        tensors["fc.bias"].zero_()

    edit_tensors(folder, look_up)
    return folder


def record(drafter, pairing):
    (drafter / "pairing.json").write_text(json.dumps({"late": pairing.late, "codes": pairing.codes}), encoding="utf-8")


@pytest.mark.parametrize("planted", PAIRINGS)
def test_the_pairing_is_found_saved_and_used(counter, tmp_path, capsys, planted):
    drafter = plant(counter, tmp_path / "drafter", planted)
    models = {"model": counter, "drafter": drafter, "device": "cpu"}
    assert cli.main(words("check-drafter", **models, temperature=0, guidance_scale=1, count=3)) == 0
    lines = capsys.readouterr().out.splitlines()
    (best,) = [line for line in lines if line.endswith("<- best")]
    assert ("own token" in best) == planted.late and ("by code" in best) == planted.codes
    share = "0.933" if planted.late else "1.000"  # with its own token, a drafter can't predict the code after the first
    assert share in best
    recorded = read_json(drafter / "pairing.json")
    assert Pairing(recorded["late"], recorded["codes"]) == planted and len(recorded["measured"]) == 4
    target = load_target(counter, dtype=torch.float64)
    loaded = load_drafter(drafter, target)
    assert loaded.pairing == planted
    for drafting in (
        Drafting("eagle2", depth=4, width=1, drafts=4),
        Drafting("eagle2", depth=4, width=2, drafts=8),
        Drafting("static:mc_sim_7b_63"),
        Drafting("eagle2", depth=4, width=2, drafts=8, proposal="top-k"),
    ):
        (record,) = counted(target, loaded, drafting).trace.rounds[1].images
        assert record.accepted == record.depth >= 4, "the drafts at all depths must be correct"


def counted(target, drafter, drafting):
    """Decode an image, check that its codes count, and return the decoding."""
    how = {"sampling": Sampling(temperature=0, guidance_scale=1), "drafting": drafting}
    decoding = run(target, drafter, ("count",), **how)
    assert decoding.codes[0].diff().remainder(CODES).eq(1).all()
    return decoding


@pytest.mark.parametrize("planted", PAIRINGS)
def test_the_pairing_is_used_with_a_jacobi_window(counter, tmp_path, planted):
    drafter = plant(counter, tmp_path / "drafter", planted)
    record(drafter, planted)
    target = load_target(counter, dtype=torch.float64)
    counted(target, load_drafter(f"{drafter}+jacobi", target), Drafting("eagle2", depth=4, width=2, drafts=6))


@pytest.mark.parametrize("planted", PAIRINGS)
def test_train_drafter_compare_uses_the_pairing(counter, tmp_path, capsys, planted):
    drafter = plant(counter, tmp_path / "drafter", planted)
    prompts = tmp_path / "prompts.txt"
    record(drafter, planted)
    prompts.write_text("one\ntwo\nthree", encoding="utf-8")
    files = {"model": counter, "prompts": prompts, "output": tmp_path / "out", "compare": drafter}
    training = {"steps": 1, "validation_prompts": 2, "training_batch_size": 1, "passes": 1, "device": "cpu"}
    assert cli.main(words("train-drafter", **files, **training, temperature=0, guidance_scale=1)) == 0
    compared = capsys.readouterr().out.splitlines()[-1]
    assert f"gives {1.933 if planted.late else 2:.3f} tokens" in compared


def test_the_default_pairing_is_eagles(tiny, capsys, tmp_path):
    target = load_target(tiny / "target")
    assert load_drafter(tiny / "drafter", target).pairing == Pairing()


@pytest.mark.parametrize(
    "given, sentence",
    [
        (["--drafter", "jacobi"], "--drafter: 'jacobi' is not a drafter network"),
        (["--count", "0"], "--count is 0"),
    ],
)
def test_invalid_input(tiny, capsys, given, sentence):
    options = ["--model", str(tiny / "target"), "--drafter", str(tiny / "drafter"), *given]
    assert cli.main(["check-drafter", *options]) != 0
    assert sentence in capsys.readouterr().err
