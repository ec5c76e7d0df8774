"""Tests of LlamaGen: captions and their encoder, files of several stages, and drafters that don't fit.

There are two layouts of a checkpoint: the authors' .pt files, and the layout of Hugging Face.
"""

import json
import shutil
from itertools import islice

import pytest
import torch

from adt_core import Drafting, cli, load_drafter, load_target
from adt_core.policies import PLAIN
from tests.command import words
from tests.drafted import new_decoding
from tests.layouts import llamagen as layout
from tests.layouts.edits import edit_config, edit_tensors
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with both layouts and both drafters."""
    home = tmp_path_factory.mktemp("llamagen")
    layout.write_upstream(home / "upstream")
    layout.write_hugging_face(home / "hugging-face")
    layout.write_drafter(home / "network")
    layout.write_drafter(home / "network2", "t2i2")
    return home


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder / "upstream" / layout.NAMES[16], dtype=torch.float64)


def test_stage_2_has_32_rows(tmp_path):
    target = load_target(layout.write_upstream(tmp_path, side=32, layers=1))
    assert target.grid == (32, 32) and target.length == 1024 and target.decoder.config.grid_rope == (120, 32)


@pytest.mark.long
def test_generate_reports_truncated_captions(folder, tmp_path, capsys):
    models = {"model": folder / "hugging-face" / "LlamaGen-T2I", "drafter": folder / "network", "device": "cpu"}
    for prompt, cut in (("a fox", False), ("fox " * 40, True)):
        command = words("generate", **models, prompt=prompt, negative_prompt="snow", output=tmp_path / "a.png")
        assert cli.main(command) == 0 and (tmp_path / "a.png").exists()
        note_text = "The prompt has 160 tokens, but LlamaGen-T2I reads only 120"
        assert (note_text in capsys.readouterr().out) is cut


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_t5_never_runs_in_float16(folder, dtype):
    target = load_target(folder / "upstream" / layout.NAMES[16], dtype=dtype)
    encoder = {parameter.dtype for parameter in target.text_encoder.parameters()}
    assert encoder == {torch.bfloat16} and target.decoder.dtype == dtype
    decoding = new_decoding(target, [target.encode_prompt("a fox")], drafting=Drafting(PLAIN))
    for _ in islice(decoding, 3):
        pass
    assert decoding.done_tokens == 4


def test_the_unconditional_row_hides_as_many_tokens_as_the_caption(target):
    prompt = target.encode_prompt("A  fox")
    empty = target.unconditional(prompt)
    assert prompt.hidden == empty.hidden == 120 - len("a fox") - 1
    assert not prompt.features[: prompt.hidden].any() and prompt.features[prompt.hidden :].any(1).all()
    assert empty.features.any(1).all()


def test_a_long_caption_is_truncated_as_in_training(target):
    cut = target.encode_prompt("fox " * 40)
    complete = target.encode_prompt(("fox " * 40)[:119])
    assert cut.note == (
        "The prompt has 160 tokens, but t2i_XL_stage1_256.pt reads only 120: it was cut after '" + " fox" * 10 + "'."
    )
    assert len(cut) == 120 and cut.hidden == 0 and torch.equal(cut.features, complete.features) and not complete.note


# ---- inspect, and refused files ------------------------------------------------------------


def test_a_file_whose_stage_is_unknown(folder, tmp_path):
    shutil.copy(folder / "upstream" / layout.NAMES[16], tmp_path / "best.pt")
    with raises_key("llamagen.no_size", path="best.pt"):
        load_target(tmp_path / "best.pt")


def test_a_folder_of_several_stages(folder):
    with raises_key("weights.other_files", others="t2i_XL_stage1_256.pt, vq_ds16_t2i.pt"):
        load_target(folder / "upstream")


def test_classes_of_imagenet(tmp_path):
    names = "tok_embeddings.weight", "cls_embedding.embedding_table.weight"
    torch.save({"model": {name: torch.zeros(9, 64) for name in names}}, tmp_path / "c2i_B_256.pt")
    with raises_key("llamagen.classes", path="c2i_B_256.pt"):
        load_target(tmp_path / "c2i_B_256.pt")


def test_drafters_of_another_stage_or_family(folder, target, tmp_path):
    with raises_key("drafter.other_family", path="network2", model="t2i_XL_stage1_256.pt"):
        load_drafter(folder / "network2", target)
    shape = {"hidden": layout.HIDDEN, "heads": layout.HEADS, "intermediate": layout.WIDE}
    other = write_tiny_checkpoint(tmp_path / "chameleon", **shape)
    foreign = write_tiny_drafter(tmp_path / "foreign", other)
    with raises_key("drafter.other_sizes", path="foreign", width=128):
        load_drafter(foreign, target)
    edit_config(foreign, lambda config: config.update(vocab_size=layout.CODES))
    name = "embed_tokens.weight"
    edit_tensors(foreign, lambda tensors: tensors.update({name: tensors[name][: layout.CODES].clone()}))
    with raises_key("drafter.other_family", path="foreign"):
        load_drafter(foreign, target)


def test_a_drafter_with_a_sparse_configuration(folder, target, tmp_path):
    """If a field is missing, the drafter must have the value of the target."""
    shutil.copytree(folder / "network", tmp_path / "terse")
    (tmp_path / "terse" / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-6}), encoding="utf-8")
    assert load_drafter(tmp_path / "terse", target).config == load_drafter(folder / "network", target).config
