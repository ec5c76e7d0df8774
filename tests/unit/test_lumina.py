"""Lumina-mGPT: forced row ends, sizes, norms of shards, a codec that lies beside the checkpoint."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import AdtError, Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.app.inspect import inspect
from tests.drafted import METHODS, run, write_drafter
from tests.layouts.lumina import write_lumina
from tests.layouts.tokens import spelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("lumina")
    write_lumina(home / "Lumina-mGPT-768-tiny", scale=3.0)
    write_drafter(home / "network", load_target(home / "Lumina-mGPT-768-tiny"))
    share_norms(home / "network")
    return home


@pytest.fixture(scope="module")
def target(folder):
    """Its folder says no size, so it would draw 768 pixels; 96 x 64 is quicker."""
    return load_target(folder / "Lumina-mGPT-768-tiny", dtype=torch.float64).sized(96, 64)


def share_norms(folder):
    """q and k norms of shape [1, head_dim], as in LANTERN's drafter for Lumina-mGPT."""
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {
            name: value[:1].clone() if "self_attn" in name and "_norm." in name else value
            for name, value in tensors.items()
        },
        folder / "model.safetensors",
    )


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_tokens_of_plain_decoding(folder, target, name, temperature):
    source, drafting = METHODS[name]
    sampling = Sampling(seed=3, temperature=temperature, top_k=20)
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, sampling=sampling, drafting=Drafting(**drafting))
    assert torch.equal(drafted.codes, run(target, sampling=sampling).codes)
    # "auto" may find that drafts don't pay here, and "repeat" guesses what such noise of an image seldom is.
    accepted = any(share.accepted for round in drafted.trace.rounds for share in round.images)
    assert accepted or name.startswith(("auto", "repeat"))


def test_every_row_ends_with_the_forced_token_and_only_there(target):
    """4 rows of 6 cells and an end: 28 tokens, of which the image has 24."""
    decoding = run(target)
    tokens = decoding.codes.view(2, 4, 7)
    assert target.num_codes == 40 and (tokens[..., -1] == 40).all() and (tokens[..., :-1] < 40).all()
    assert torch.equal(decoding.grid_codes(), tokens[..., :-1])
    assert target.codec.decode(decoding.grid_codes()).shape == (2, 3, 64, 96)


def test_what_is_kept_is_counted_in_cells(target):
    """28 tokens are 24 cells; 26 cells are those of a larger image."""
    assert run(target, prefix=torch.zeros(2, 24, dtype=torch.long)).grid_codes().eq(0).all()
    with pytest.raises(AdtError, match=r"prefix has the shape \[2, 26\]; it must be \[2 images, at most 24 codes\]"):
        run(target, prefix=torch.zeros(2, 26, dtype=torch.long))


def test_relaxed_acceptance_never_touches_a_row_end(folder, target):
    drafter = load_drafter(str(folder / "network"), target)
    decoding = run(target, drafter, drafting=Drafting("adt-tree"), lantern=Lantern(neighbours=39, delta=1.0))
    tokens = decoding.codes.view(2, 4, 7)
    assert (tokens[..., -1] == 40).all() and (tokens[..., :-1] < 40).all()
    assert decoding.trace.report()["substitution_rate"] > 0


def test_the_prompt_names_the_size(target):
    """``<s>`` request ``<reserved08706> <racm3:break>`` height width, in steps of 32 pixels.

    The other row has the last three.
    """
    vocabulary, prompt = target.prompter.vocabulary, target.encode_prompt("a cat")
    header = [vocabulary["<racm3:break>"], vocabulary["<reserved08802>"], vocabulary["<reserved08803>"]]
    assert prompt[0] == vocabulary["<s>"] and prompt[-4:] == [vocabulary["<reserved08706>"], *header]
    assert spelled(target, prompt[1:-4]) == "Generate an image of 96x64 according to the following prompt:\na cat"
    assert target.unconditional(prompt) == header


@pytest.mark.parametrize(
    "size, reason",
    [
        ((100, 64), "multiples of"),
        ((48, 64), "multiples of 32"),
        ((32, 160), "4 times"),
        ((1024, 1024), "no more pixels"),
    ],
)
def test_sizes_that_it_cannot_draw(folder, size, reason):
    target = load_target(folder / "Lumina-mGPT-768-tiny")
    with pytest.raises(AdtError, match=rf"size is {size[0]}x{size[1]}.*{reason}"):
        target.sized(*size)


def test_the_codec_may_lie_beside_the_checkpoint(folder, tmp_path):
    alone = write_lumina(tmp_path / "alone" / "Lumina-mGPT-768-tiny")
    (alone.parent / "vqgan.ckpt").unlink()
    with pytest.raises(AdtError, match=r"lacks the tensor 'model.vqmodel.decoder.*put vqgan.ckpt"):
        load_target(alone)
    (found,) = inspect(str(alone))
    assert "vqgan.ckpt" in found["to_do"][0] and found["left_over"] == []
    (found,) = inspect(str(folder / "Lumina-mGPT-768-tiny"))
    assert (
        found["family"] == "lumina-mgpt"
        and found["missing"] == found["left_over"] == found["wrong_shape"] == found["to_do"] == []
    )


def test_a_missing_shard_is_named(tmp_path):
    folder = write_lumina(tmp_path / "target")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(AdtError, match="model-00002-of-00002.safetensors"):
        load_target(folder)


def test_the_size_token_must_be_there(tmp_path):
    folder = write_lumina(tmp_path / "Lumina-mGPT-7B-1024")
    with pytest.raises(AdtError, match="reserved08832"):
        load_target(folder)
