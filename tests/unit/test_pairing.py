"""check-drafter: how a drafter was trained is found by planted pairings, recorded beside it, and followed when it
drafts.

No published drafter can be had here, so that only planted ones are tested.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import Decoding, Drafting, Sampling, cli, load_drafter, load_target
from adt_core.drafters.eagle import Pairing
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

CODES = 40
PAIRINGS = [Pairing(late, codes) for late in (False, True) for codes in (False, True)]


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A target that counts: whatever it reads, the code after c is c + 1. Its layers add nothing, and its head looks
    for the embedding of the code before."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("counter") / "target", codes=CODES)
    tensors, vocabulary = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text())["vocabulary_map"],
    )
    first = vocabulary["IMGIMGAZ"]
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()
    tensors["model.norm.weight"].fill_(1)
    codes = tensors["model.embed_tokens.weight"][first : first + CODES]
    tensors["lm_head.weight"][first : first + CODES] = codes.roll(1, 0)
    save_file(tensors, folder / "model.safetensors")
    return folder


def plant(counter, folder, pairing):
    """A drafter that knows the feature after a token if it is fed as in ``pairing``: it looks it up in its embedding,
    and adds nothing to that."""
    write_tiny_drafter(folder, counter)
    tensors, vocabulary = (
        load_file(folder / "model.safetensors"),
        json.loads((counter / "config.json").read_text())["vocabulary_map"],
    )
    first, h = vocabulary["IMGIMGAZ"], tensors["fc.bias"].shape[0]
    codes = tensors["embed_tokens.weight"][first : first + CODES].clone()
    tensors["embed_tokens.weight"].zero_()
    start = 0 if pairing.codes else first
    tensors["embed_tokens.weight"][start : start + CODES] = codes.roll(-1, 0) if pairing.late else codes
    tensors["fc.weight"] = torch.cat([torch.eye(h), torch.zeros(h, h)], 1)
    tensors["fc.bias"].zero_()
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("planted", PAIRINGS)
def test_a_planted_pairing_is_found_recorded_and_followed(counter, tmp_path, capsys, planted):
    drafter = plant(counter, tmp_path / "drafter", planted)
    options = [
        "--model",
        str(counter),
        "--drafter",
        str(drafter),
        "--temperature",
        "0",
        "--cfg",
        "1",
        "--count",
        "3",
        "--device",
        "cpu",
    ]
    assert cli.main(["check-drafter", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    (best,) = [line for line in lines if line.endswith("<- best")]
    assert ("own token" in best) == planted.late and ("by code" in best) == planted.codes
    assert ("0.933" if planted.late else "1.000") in best  # a late one cannot know what follows the first code
    recorded = json.loads((drafter / "pairing.json").read_text())
    assert Pairing(recorded["late"], recorded["codes"]) == planted and len(recorded["measured"]) == 4
    target = load_target(counter, dtype=torch.float64)
    loaded = load_drafter(drafter, target)
    assert loaded.pairing == planted
    for drafting in (
        Drafting(method="eagle2", depth=4, width=1, nodes=4),
        Drafting(method="eagle2", depth=4, width=2, nodes=8),
        Drafting(method="static:mc_sim_7b_63"),
        Drafting(method="eagle2", depth=4, width=2, nodes=8, proposal="top-k"),
    ):
        decoding = Decoding(
            target,
            [target.encode_prompt("count")],
            sampling=Sampling(temperature=0, guidance=1),
            drafting=drafting,
            drafter=loaded,
        )
        rounds = list(decoding)
        assert decoding.codes[0].diff().remainder(CODES).eq(1).all()
        assert (
            rounds[1].images[0].accepted == rounds[1].images[0].depth >= 4
        )  # every draft is right, as deep as the tree goes


@pytest.mark.parametrize("planted", PAIRINGS)
def test_the_pairing_is_followed_beside_a_window_too(counter, tmp_path, planted):
    """Network and window in one tree: no token changes, and the network's part is right from the first round on."""
    drafter = plant(counter, tmp_path / "drafter", planted)
    (drafter / "pairing.json").write_text(json.dumps(planted._asdict()))
    target = load_target(counter, dtype=torch.float64)
    decoding = Decoding(
        target,
        [target.encode_prompt("count")],
        sampling=Sampling(temperature=0, guidance=1),
        drafting=Drafting(method="eagle2", depth=4, width=2, nodes=6),
        drafter=load_drafter(f"{drafter}+jacobi", target),
    )
    list(decoding)
    assert decoding.codes[0].diff().remainder(CODES).eq(1).all()


@pytest.mark.parametrize("planted", PAIRINGS)
def test_a_drafter_is_compared_as_it_was_trained(counter, tmp_path, capsys, planted):
    """``train-drafter --compare`` feeds it by its record, as drafting does."""
    drafter, prompts = plant(counter, tmp_path / "drafter", planted), tmp_path / "prompts.txt"
    (drafter / "pairing.json").write_text(json.dumps(planted._asdict()))
    prompts.write_text("one\ntwo\nthree")
    options = {"model": counter, "prompts": prompts, "output": tmp_path / "out", "compare": drafter, "steps": 1}
    options |= {"held-out": 2, "batch": 1, "passes": 1, "temperature": 0, "cfg": 1, "device": "cpu"}
    assert cli.main(["train-drafter", *(f"--{name}={value}" for name, value in options.items())]) == 0
    compared = capsys.readouterr().out.splitlines()[-1]
    assert f"gives {1.933 if planted.late else 2:.3f} tokens" in compared


def test_a_random_drafter_is_not_made_to_fit(tiny, capsys, tmp_path):
    """Without a record, inference is EAGLE's; the bundled drafter is left as it is."""
    target = load_target(tiny / "target")
    assert load_drafter(tiny / "drafter", target).pairing == Pairing()


@pytest.mark.parametrize(
    "given, sentence",
    [
        (["--drafter", "jacobi"], "--drafter: 'jacobi' is no network"),
        (["--count", "0"], "--count is 0"),
        (["--seed", "-1"], "seed is -1; it must be a whole number from 0 to 2**64 - 1."),
    ],
)
def test_bad_input(tiny, capsys, given, sentence):
    options = ["--model", str(tiny / "target"), "--drafter", str(tiny / "drafter"), *given]
    assert cli.main(["check-drafter", *options]) != 0
    assert sentence in capsys.readouterr().err
