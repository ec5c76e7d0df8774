"""LlamaGen: every method in both layouts, what may be missing beside a checkpoint, drafters that don't fit."""

import json
import shutil
from itertools import islice

import pytest
import torch

from adt_core import AdtError, Decoding, Drafting, Sampling, cli, load_drafter, load_target
from adt_core.app.inspect import inspect
from tests.layouts import llamagen as layout
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

METHODS = {
    "eagle2": ("network", dict(method="eagle2", depth=4, width=3, nodes=12)),
    "chain": ("network", dict(method="eagle2", depth=4, width=1, nodes=4)),
    "adt-tree": ("network", dict(method="adt-tree")),
    "top-k": ("network", dict(method="adt-tree", proposal="top-k")),
    "static": ("network", dict(method="static:mc_sim_7b_63")),
    "window": ("jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "both": ("network+jacobi", dict(method="eagle2", depth=12, width=3, nodes=16)),
    "auto": ("network", dict(method="auto")),
}
CAPTIONS = ("a red fox in deep snow", "two boats")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both layouts and both drafters."""
    home = tmp_path_factory.mktemp("llamagen")
    layout.write_upstream(home / "upstream")
    layout.write_hugging_face(home / "hugging-face")
    layout.write_drafter(home / "network")
    layout.write_drafter(home / "network2", "t2i2")
    return home


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder / "upstream" / layout.NAMES[16], dtype=torch.float64)


@pytest.fixture(scope="module")
def plain(target):
    """Codes of plain decoding by temperature."""
    return {temperature: run(target, temperature=temperature).codes for temperature in (0, 1)}


def run(target, drafter=None, temperature=1, **drafting):
    decoding = Decoding(
        target,
        [target.encode_prompt(caption) for caption in CAPTIONS],
        drafter=drafter,
        sampling=Sampling(seed=3, temperature=temperature, top_k=20),
        drafting=Drafting(**drafting or {"method": "autoregressive"}),
    )
    for _ in decoding:
        pass
    return decoding


@pytest.mark.parametrize("name, temperature", [*((name, 1) for name in METHODS), ("adt-tree", 0), ("both", 0)])
def test_every_method_gives_the_tokens_of_plain_decoding(folder, target, plain, name, temperature):
    source, drafting = METHODS[name]
    drafter = load_drafter(source.replace("network", str(folder / "network")), target)
    drafted = run(target, drafter, temperature, **drafting)
    assert torch.equal(drafted.codes, plain[temperature])
    assert name == "auto" or any(
        share.accepted for round in drafted.trace.rounds for share in round.images
    )  # auto may find that drafts don't pay here


@pytest.mark.parametrize("kept", [1, 23])
def test_a_picture_may_be_continued(folder, target, plain, kept):
    """The codes that are kept stand behind the caption's features."""
    drafter = load_drafter(folder / "network", target)
    prompts = [target.encode_prompt(caption) for caption in CAPTIONS]
    decoding = Decoding(
        target, prompts, drafter=drafter, sampling=Sampling(seed=3, temperature=1, top_k=20), prefix=plain[1][:, :kept]
    )
    for _ in decoding:
        pass
    assert torch.equal(decoding.codes, plain[1])


def test_both_layouts_are_the_same_model(folder, target, plain):
    other = load_target(folder / "hugging-face" / "LlamaGen-T2I", dtype=torch.float64)
    assert torch.equal(run(other).codes, plain[1]) and len(plain[1].unique()) > 9
    assert target.grid == other.grid == (16, 16)


def test_stage_2_draws_32_rows(tmp_path):
    target = load_target(layout.write_upstream(tmp_path, side=32, layers=1))
    assert target.grid == (32, 32) and target.length == 1024 and target.decoder.config.grid_rope == (120, 32)


def test_generate(folder, tmp_path, capsys):
    output = tmp_path / "a.png"
    arguments = [
        "generate",
        "--model",
        str(folder / "hugging-face" / "LlamaGen-T2I"),
        "--drafter",
        str(folder / "network"),
        "--prompt",
        "a fox",
        "--negative",
        "snow",
        "--device",
        "cpu",
        "--output",
        str(output),
    ]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    assert output.exists() and "reads 120" not in capsys.readouterr().out
    assert cli.main(["fox " * 40 if word == "a fox" else word for word in arguments]) == 0
    assert "The prompt is 160 tokens long, and LlamaGen-T2I reads 120" in capsys.readouterr().out


@pytest.mark.parametrize("dtype, encoder", [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.bfloat16)])
def test_half_precision(folder, dtype, encoder):
    """T5 is never run in float16, whose range it leaves."""
    target = load_target(folder / "upstream" / layout.NAMES[16], dtype=dtype)
    assert {parameter.dtype for parameter in target.text_encoder.parameters()} == {
        encoder
    } and target.decoder.dtype == dtype
    decoding = Decoding(target, [target.encode_prompt("a fox")], drafting=Drafting(method="autoregressive"))
    for _ in islice(decoding, 3):
        pass
    assert decoding.done_tokens == 4


def test_the_unconditional_row_is_hidden_where_the_caption_is(target):
    prompt = target.encode_prompt("A  fox")
    empty = target.unconditional(prompt)
    assert prompt.hidden == empty.hidden == 120 - len("a fox") - 1
    assert (
        not prompt.features[: prompt.hidden].any()
        and prompt.features[prompt.hidden :].any(1).all()
        and empty.features.any(1).all()
    )


@pytest.mark.parametrize(
    "text, reason",
    [
        (" ", "prompt is empty"),
        ("狐狸", "describe the picture in English"),
    ],
)
def test_prompts_that_it_cannot_read(target, text, reason):
    with pytest.raises(AdtError, match=reason):
        target.encode_prompt(text)


def test_a_long_caption_is_cut_as_in_training(target):
    """Its first 119 tokens and the one that ends it; and whoever wrote it is told."""
    cut = target.encode_prompt("fox " * 40)
    whole = target.encode_prompt(("fox " * 40)[:119])
    assert cut.note == (
        "The prompt is 160 tokens long, and t2i_XL_stage1_256.pt reads 120: it ends at '" + " fox" * 10 + "'."
    )
    assert len(cut) == 120 and cut.hidden == 0 and torch.equal(cut.features, whole.features) and not whole.note


# ---- what inspect says, and what is refused ------------------------------------------------


@pytest.mark.parametrize("name", [f"upstream/{layout.NAMES[16]}", "hugging-face/LlamaGen-T2I"])
def test_inspect(folder, name):
    (found,) = inspect(str(folder / name))
    assert (
        found["family"] == "llamagen"
        and found["grid"] == [16, 16]
        and found["pixels"] == [256, 256]
        and found["codebook"] == [40, 8]
    )
    assert found["missing"] == found["left_over"] == found["wrong_shape"] == found["to_do"] == []
    assert found["memory"]["float32"] > found["memory"]["bfloat16"] > 0
    (drafter,) = inspect(str(folder / "network2"))
    assert drafter["role"] == "drafter" and drafter["missing"] == drafter["left_over"] == []


@pytest.mark.parametrize(
    "file, tensor, remedy",
    [("vq_ds16_t2i.pt", "codec.", "download vq_ds16_t2i.pt"), ("t5-ckpt", "t5.", "download google/flan-t5-xl")],
)
def test_what_is_missing_beside_the_checkpoint_is_named(folder, tmp_path, file, tensor, remedy):
    alone = tmp_path / "alone" / layout.NAMES[16]
    shutil.copytree(folder / "upstream", alone.parent, ignore=lambda *_: [file])
    with pytest.raises(AdtError, match=rf"{alone.name} lacks the tensor '{tensor}.*{remedy}"):
        load_target(alone)
    (found,) = inspect(str(alone))
    assert (
        len(found["to_do"]) == 1
        and remedy in found["to_do"][0]
        and all(name.startswith(tensor) for name in found["missing"])
    )


def test_a_tensor_of_another_shape_is_named(tmp_path):
    path = layout.write_upstream(tmp_path)
    tensors = layout.transformer()
    tensors["layers.1.attention.wqkv.weight"] = tensors["layers.1.attention.wqkv.weight"][:-1]
    torch.save({"model": tensors}, path)
    with pytest.raises(
        AdtError, match=r"layers.1.attention.wqkv.weight has shape \(383, 128\), but \(384, 128\) was expected"
    ):
        load_target(path)


def test_a_file_whose_stage_is_unknown(folder, tmp_path):
    shutil.copy(folder / "upstream" / layout.NAMES[16], tmp_path / "best.pt")
    with pytest.raises(AdtError, match="best.pt doesn't say how large.*t2i_XL_stage2_512.pt"):
        load_target(tmp_path / "best.pt")


def test_a_folder_of_several_stages(folder):
    with pytest.raises(AdtError, match="give one of its files: t2i_XL_stage1_256.pt, vq_ds16_t2i.pt"):
        load_target(folder / "upstream")


def test_classes_of_imagenet(tmp_path):
    tensors = {
        "tok_embeddings.weight": torch.zeros(4, 64),
        "cls_embedding.embedding_table.weight": torch.zeros(1001, 64),
    }
    torch.save({"model": tensors}, tmp_path / "c2i_B_256.pt")
    with pytest.raises(AdtError, match="c2i_B_256.pt is LlamaGen for classes of ImageNet"):
        load_target(tmp_path / "c2i_B_256.pt")


def test_drafters_of_another_stage_or_family(folder, target, tmp_path):
    with pytest.raises(
        AdtError, match="network2' was trained for another family or another size of image than t2i_XL_stage1_256.pt"
    ):
        load_drafter(folder / "network2", target)
    other = write_tiny_checkpoint(
        tmp_path / "chameleon", hidden=layout.HIDDEN, heads=layout.HEADS, intermediate=layout.WIDE
    )
    stranger = write_tiny_drafter(tmp_path / "stranger", other)
    with pytest.raises(AdtError, match="stranger' has width 128 and .* tokens"):
        load_drafter(stranger, target)
    config = json.loads((stranger / "config.json").read_text()) | {"vocab_size": layout.CODES}
    (stranger / "config.json").write_text(json.dumps(config))
    from safetensors.torch import load_file, save_file

    tensors = load_file(stranger / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"][: layout.CODES].clone()
    save_file(tensors, stranger / "model.safetensors")
    with pytest.raises(AdtError, match="stranger' was trained for another family"):
        load_drafter(stranger, target)


def test_a_drafter_whose_configuration_says_little(folder, target, tmp_path):
    """What is left out is as in the target."""
    shutil.copytree(folder / "network", tmp_path / "terse")
    (tmp_path / "terse" / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-6}))
    assert load_drafter(tmp_path / "terse", target).config == load_drafter(folder / "network", target).config
