"""check-drafter: how a drafter was trained is found by planted pairings, recorded beside it, and followed when it
drafts.

No published drafter can be had here, so that only planted ones are tested.
"""

import json

import pytest
import torch

from adt_core import Drafting, Sampling, cli, load_drafter, load_target
from adt_core.drafters.eagle import Pairing
from tests.command import words
from tests.drafted import run
from tests.layouts.edits import edit_tensors
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

CODES = 40
PAIRINGS = [Pairing(late, codes) for late in (False, True) for codes in (False, True)]


def silenced(tensors):
    """Let the layers add nothing."""
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()


def codes_in(folder):
    """Where the codes stand in a vocabulary."""
    first = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocabulary_map"]["IMGIMGAZ"]
    return slice(first, first + CODES)


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A target that counts: whatever it reads, the code after c is c + 1. Its layers add nothing, and its head looks
    for the embedding of the code before."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("counter") / "target", codes=CODES)
    codes = codes_in(folder)

    def count(tensors):
        silenced(tensors)
        tensors["model.norm.weight"].fill_(1)
        tensors["lm_head.weight"][codes] = tensors["model.embed_tokens.weight"][codes].roll(1, 0)

    edit_tensors(folder, count)
    return folder


def plant(counter, folder, pairing):
    """A drafter that knows the feature after a token if it is fed as in ``pairing``: it looks it up in its embedding,
    and adds nothing to that."""
    write_tiny_drafter(folder, counter)

    def look_up(tensors):
        silenced(tensors)
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
def test_a_planted_pairing_is_found_recorded_and_followed(counter, tmp_path, capsys, planted):
    drafter = plant(counter, tmp_path / "drafter", planted)
    models = {"model": counter, "drafter": drafter, "device": "cpu"}
    assert cli.main(words("check-drafter", **models, temperature=0, cfg=1, count=3)) == 0
    lines = capsys.readouterr().out.splitlines()
    (best,) = [line for line in lines if line.endswith("<- best")]
    assert ("own token" in best) == planted.late and ("by code" in best) == planted.codes
    assert ("0.933" if planted.late else "1.000") in best  # a late one cannot know what follows the first code
    recorded = json.loads((drafter / "pairing.json").read_text(encoding="utf-8"))
    assert Pairing(recorded["late"], recorded["codes"]) == planted and len(recorded["measured"]) == 4
    target = load_target(counter, dtype=torch.float64)
    loaded = load_drafter(drafter, target)
    assert loaded.pairing == planted
    for drafting in (
        Drafting("eagle2", depth=4, width=1, nodes=4),
        Drafting("eagle2", depth=4, width=2, nodes=8),
        Drafting("static:mc_sim_7b_63"),
        Drafting("eagle2", depth=4, width=2, nodes=8, proposal="top-k"),
    ):
        (share,) = counted(target, loaded, drafting).trace.rounds[1].images
        assert share.accepted == share.depth >= 4, "every draft is right, as deep as the tree goes"


def counted(target, drafter, drafting):
    """A decoding, which has counted."""
    how = {"sampling": Sampling(temperature=0, guidance=1), "drafting": drafting}
    decoding = run(target, drafter, ("count",), **how)
    assert decoding.codes[0].diff().remainder(CODES).eq(1).all()
    return decoding


@pytest.mark.parametrize("planted", PAIRINGS)
def test_the_pairing_is_followed_beside_a_window_too(counter, tmp_path, planted):
    """Network and window in one tree: no token changes, and the network's part is right from the first round on."""
    drafter = plant(counter, tmp_path / "drafter", planted)
    record(drafter, planted)
    target = load_target(counter, dtype=torch.float64)
    counted(target, load_drafter(f"{drafter}+jacobi", target), Drafting("eagle2", depth=4, width=2, nodes=6))


@pytest.mark.parametrize("planted", PAIRINGS)
def test_a_drafter_is_compared_as_it_was_trained(counter, tmp_path, capsys, planted):
    """``train-drafter --compare`` feeds it by its record, as drafting does."""
    drafter = plant(counter, tmp_path / "drafter", planted)
    prompts = tmp_path / "prompts.txt"
    record(drafter, planted)
    prompts.write_text("one\ntwo\nthree", encoding="utf-8")
    files = {"model": counter, "prompts": prompts, "output": tmp_path / "out", "compare": drafter}
    training = {"steps": 1, "held_out": 2, "batch": 1, "passes": 1, "temperature": 0, "cfg": 1, "device": "cpu"}
    assert cli.main(words("train-drafter", **files, **training)) == 0
    compared = capsys.readouterr().out.splitlines()[-1]
    assert f"gives {1.933 if planted.late else 2:.3f} tokens" in compared


def test_a_random_drafter_is_not_made_to_fit(tiny, capsys, tmp_path):
    """Without a record, inference is EAGLE's; the bundled drafter is left as it is."""
    target = load_target(tiny / "target")
    assert load_drafter(tiny / "drafter", target).pairing == Pairing()


@pytest.mark.parametrize(
    "given, sentence",
    [
        (["--drafter", "jacobi"], "--drafter: 'jacobi' is not a drafter network"),
        (["--count", "0"], "--count is 0"),
    ],
)
def test_bad_input(tiny, capsys, given, sentence):
    options = ["--model", str(tiny / "target"), "--drafter", str(tiny / "drafter"), *given]
    assert cli.main(["check-drafter", *options]) != 0
    assert sentence in capsys.readouterr().err
