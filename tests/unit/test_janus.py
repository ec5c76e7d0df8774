"""Janus-Pro: lossless with every drafter, prompts, what is said of files that are wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import AdtError, Lantern, Sampling, load_drafter, load_target
from adt_core.app.inspect import inspect
from adt_core.policies import Drafting
from tests.drafted import METHODS, run, write_drafter
from tests.layouts.janus import BEGIN_IMAGE, BOS, CODES, PAD, write_janus
from tests.layouts.tokens import spelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target in each layout, and a drafter for both."""
    home = tmp_path_factory.mktemp("janus")
    for layout in ("transformers", "deepseek"):
        write_janus(home / layout, layout=layout, image_size=128)
    write_drafter(home / "network", load_target(home / "transformers"))
    return home


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder / "transformers", dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_tokens_of_plain_decoding(folder, target, name, temperature):
    source, drafting = METHODS[name]
    sampling = Sampling(seed=3, temperature=temperature, guidance=5.0)
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, sampling=sampling, drafting=Drafting(**drafting))
    assert torch.equal(drafted.codes, run(target, sampling=sampling).codes)
    assert "auto" in name or any(share.accepted for round in drafted.trace.rounds for share in round.images)


def test_a_quantised_model_is_as_lossless(folder):
    target = load_target(folder / "transformers", dtype=torch.float64, weights="int8")
    drafted = run(
        target,
        load_drafter("jacobi", target),
        sampling=Sampling(seed=3, guidance=5.0),
        drafting=Drafting(**METHODS["jacobi"][1]),
    )
    assert torch.equal(drafted.codes, run(target, sampling=Sampling(seed=3, guidance=5.0)).codes)


def test_relaxed_acceptance_substitutes_codes(folder, target):
    drafted = run(
        target,
        load_drafter(str(folder / "network"), target),
        drafting=Drafting("adt-tree"),
        lantern=Lantern(neighbours=CODES - 1, delta=1.0),
    )
    assert drafted.trace.report()["substitution_rate"] > 0 and ((drafted.codes >= 0) & (drafted.codes < CODES)).all()


def test_the_prompt_is_the_published_conversation(target):
    """User, assistant, begin of image. The other row keeps the first and the last token, with padding between."""
    vocabulary, prompt = target.prompter.vocabulary, target.encode_prompt("  a cat\n")
    assert prompt[0] == vocabulary[BOS] and prompt[-1] == vocabulary[BEGIN_IMAGE]
    assert spelled(target, prompt).replace(" ", "") == f"{BOS}<|User|>:acat\n\n<|Assistant|>:{BEGIN_IMAGE}"
    assert "<|User|>" in [target.prompter.tokenizer.id_to_token(i) for i in prompt], "one token"
    assert target.unconditional(prompt) == [prompt[0], *[vocabulary[PAD]] * (len(prompt) - 2), prompt[-1]]


def test_prompts_that_cannot_be_read(target):
    with pytest.raises(AdtError, match="prompt is empty"):
        target.encode_prompt(" \n")
    with pytest.raises(AdtError, match=r"prompt is \d+ tokens long, and transformers has room for 134; shorten it"):
        target.encode_prompt("x" * 200)
    with pytest.raises(AdtError, match="size is 128x64.*grid of 8 x 8 tokens only"):
        target.sized(128, 64)


@pytest.mark.parametrize("layout", ["transformers", "deepseek"])
def test_inspect(folder, layout):
    """From the headers; what only understanding needs is not called left over."""
    (found,) = inspect(str(folder / layout))
    assert (found["family"], found["grid"], found["pixels"], found["codebook"]) == (
        "janus",
        [8, 8],
        [128, 128],
        [CODES, 8],
    )
    assert found["missing"] == found["wrong_shape"] == found["left_over"] == found["to_do"] == []


def spoil(folder, change):
    """Write the checkpoint's tensors again after ``change``."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_missing_tensor_is_named(tmp_path):
    folder = write_janus(tmp_path / "target")
    spoil(folder, lambda tensors: tensors.pop("model.generation_aligner.fc1.bias"))
    with pytest.raises(AdtError, match="lacks the tensor 'model.generation_aligner.fc1.bias'"):
        load_target(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path):
    folder = write_janus(tmp_path / "target")
    spoil(folder, lambda tensors: tensors.update({"model.generation_embeddings.weight": torch.zeros(CODES, 7)}))
    with pytest.raises(
        AdtError, match=r"model.generation_embeddings.weight has shape \(40, 7\), but \(40, 8\) was expected"
    ):
        load_target(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = write_janus(tmp_path / "target", layout="deepseek", shards=2)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(AdtError, match="lacks pytorch_model-00002-of-00002.bin"):
        load_target(folder)


def test_files_beside_the_weights(tmp_path):
    folder = write_janus(tmp_path / "target")
    (folder / "tokenizer.json").rename(folder / "elsewhere.json")
    with pytest.raises(AdtError, match="has no tokenizer.json"):
        load_target(folder)
    assert "has no tokenizer.json" in inspect(str(folder))[0]["to_do"][0]
    (folder / "elsewhere.json").write_text(
        (folder / "elsewhere.json").read_text(encoding="utf-8").replace(BEGIN_IMAGE, "<other>"), encoding="utf-8"
    )
    (folder / "elsewhere.json").rename(folder / "tokenizer.json")
    with pytest.raises(AdtError, match=f"tokenizer.json lacks {BEGIN_IMAGE}"):
        load_target(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if name != "vq_config"})
    )
    with pytest.raises(AdtError, match="config.json has no vq_config"):
        load_target(folder)


def test_a_drafter_of_another_family(folder, target):
    with pytest.raises(AdtError, match="choose the drafter that was trained for this target"):
        load_drafter("bundled", target)
