"""Lumina-mGPT: forced row ends, sizes, norms of shards, a codec that lies beside the checkpoint."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import AdtError, Decoding, Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.inspection import inspect
from tests.layouts.lumina import write_lumina
from tests.tiny import layer_tensors

METHODS = {
    "eagle2": ("network", dict(method="eagle2", depth=4, width=3, nodes=12)),
    "adt-tree": ("network", dict(method="adt-tree")),
    "top-k": ("network", dict(method="adt-tree", proposal="top-k")),
    "static": ("network", dict(method="static:mc_sim_7b_63")),
    "window": ("jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "window, top-k": ("jacobi", dict(method="eagle2", depth=12, width=2, nodes=16, proposal="top-k")),
    "window as a chain": ("jacobi", dict(method="eagle2", depth=8, width=1, nodes=8)),
    "both": ("network+jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "auto": ("network", dict(method="auto")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("lumina")
    write_lumina(home / "Lumina-mGPT-tiny", scale=3.0)
    write_drafter(home / "network", home / "Lumina-mGPT-tiny")
    return home


@pytest.fixture(scope="module")
def target(folder):
    """Its folder says no size, so it would draw 768 pixels; 96 x 64 is quicker."""
    return load_target(folder / "Lumina-mGPT-tiny", dtype=torch.float64).sized(96, 64)


def write_drafter(folder, target):
    folder.mkdir()
    config = json.loads((target / "config.json").read_text())
    h, generator = config["hidden_size"], torch.Generator().manual_seed(4)
    shards = [load_file(file) for file in target.glob("*.safetensors")]
    (embedding,) = [shard["model.embed_tokens.weight"] for shard in shards if "model.embed_tokens.weight" in shard]
    tensors = {"embed_tokens.weight": embedding, "fc.weight": torch.randn(h, 2 * h, generator=generator) * (2 * h) ** -0.5, "fc.bias": torch.zeros(h)}
    tensors |= layer_tensors(generator, "layers.0", h, config["intermediate_size"], config["num_attention_heads"], config["num_key_value_heads"])
    tensors |= {name: value[:1].clone() for name, value in tensors.items() if "self_attn" in name and "_norm." in name}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))


def run(target, drafter=None, **options):
    prompts = [target.encode_prompt("a cat"), target.encode_prompt("three small dogs")]
    decoding = Decoding(target, prompts, drafter=drafter, **{"drafting": Drafting(method="autoregressive"), **options})
    for _ in decoding:
        pass
    return decoding


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_tokens_of_plain_decoding(folder, target, name, temperature):
    source, drafting = METHODS[name]
    sampling = Sampling(seed=3, temperature=temperature, top_k=20)
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, sampling=sampling, drafting=Drafting(**drafting))
    assert torch.equal(drafted.codes, run(target, sampling=sampling).codes)
    assert name == "auto" or any(share.accepted for round in drafted.trace.rounds for share in round.images)  # auto may find that drafts don't pay here


def test_every_row_ends_with_the_forced_token_and_only_there(target):
    """4 rows of 6 cells and an end: 28 tokens, of which the image has 24."""
    decoding = run(target)
    tokens = decoding.codes.view(2, 4, 7)
    assert target.num_codes == 40 and (tokens[..., -1] == 40).all() and (tokens[..., :-1] < 40).all()
    assert torch.equal(decoding.grid_codes(), tokens[..., :-1])
    assert target.codec.decode(decoding.grid_codes()).shape == (2, 3, 64, 96)


def test_relaxed_acceptance_never_touches_a_row_end(folder, target):
    drafter = load_drafter(str(folder / "network"), target)
    decoding = run(target, drafter, drafting=Drafting(), lantern=Lantern(neighbours=39, delta=1.0))
    tokens = decoding.codes.view(2, 4, 7)
    assert (tokens[..., -1] == 40).all() and (tokens[..., :-1] < 40).all()
    assert decoding.trace.report()["substitution_rate"] > 0


def test_the_prompt_names_the_size(target):
    """``<s>`` request ``<reserved08706> <racm3:break>`` height width, in steps of 32 pixels; the other row has the last three."""
    vocabulary, prompt = target.prompter.vocabulary, target.encode_prompt("a cat")
    header = [vocabulary["<racm3:break>"], vocabulary["<reserved08802>"], vocabulary["<reserved08803>"]]
    assert prompt[0] == vocabulary["<s>"] and prompt[-4:] == [vocabulary["<reserved08706>"], *header]
    assert target.prompter.tokenizer.decode(prompt[1:-4]) == "Generate an image of 96x64 according to the following prompt:\na cat"
    assert target.unconditional(prompt) == header


@pytest.mark.parametrize("size, reason", [((100, 64), "multiples of"), ((48, 64), "multiples of 32"), ((32, 160), "4 times"), ((1024, 1024), "no more pixels")])
def test_sizes_that_it_cannot_draw(folder, size, reason):
    target = load_target(folder / "Lumina-mGPT-tiny")
    with pytest.raises(AdtError, match=rf"size is {size[0]}x{size[1]}.*{reason}"):
        target.sized(*size)


def test_the_codec_may_lie_beside_the_checkpoint(folder, tmp_path):
    alone = write_lumina(tmp_path / "alone" / "Lumina-mGPT-tiny")
    (alone.parent / "vqgan.ckpt").unlink()
    with pytest.raises(AdtError, match=r"lacks the tensor 'model.vqmodel.decoder.*put vqgan.ckpt"):
        load_target(alone)
    (found,) = inspect(str(alone))
    assert "vqgan.ckpt" in found["to_do"][0] and found["left_over"] == []
    (found,) = inspect(str(folder / "Lumina-mGPT-tiny"))
    assert found["family"] == "lumina-mgpt" and found["missing"] == found["left_over"] == found["wrong_shape"] == found["to_do"] == []


def test_a_missing_shard_is_named(tmp_path):
    folder = write_lumina(tmp_path / "target")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(AdtError, match="model-00002-of-00002.safetensors"):
        load_target(folder)


def test_the_size_token_must_be_there(tmp_path):
    folder = write_lumina(tmp_path / "Lumina-mGPT-7B-1024")
    with pytest.raises(AdtError, match="reserved08832"):
        load_target(folder)
