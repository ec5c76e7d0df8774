"""Tests of paths that aren't models. The loader must find the model, or raise an error that names the kind of file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adt_core import load_target
from adt_core.errors import command
from adt_core.models.load import published
from adt_core.models.reading.paths import home_of, name_of
from adt_core.run.model_files import default_drafter
from tests.layouts.edits import check_refused, edit_config
from tests.layouts.emu3 import write_emu3
from tests.layouts.janus import write_janus
from tests.layouts.lumina import write_lumina

ROOT = Path(__file__).parents[3]

# ---- a part of a checkpoint instead of all of it --------------------------------------------------


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_file_in_a_models_folder_selects_the_folder(tmp_path, file):
    folder = write_lumina(tmp_path / "models" / "Lumina-mGPT-7B-768")
    target = load_target(folder / file)
    assert target.name == "Lumina-mGPT-7B-768" == name_of(folder / file) and home_of(folder / file) == folder.parent
    drafter = tmp_path / "models" / "LANTERN-Lumina-mGPT-7B-768"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}", encoding="utf-8")
    assert default_drafter(str(folder / file)) == str(drafter)
    (folder / "model-00002-of-00002.safetensors").unlink()
    check_refused(folder / "config.json", "model.incomplete", error="index.missing_files")


def test_few_of_many_missing_shards_are_named(tmp_path):
    folder = write_lumina(tmp_path / "Lumina-mGPT-7B-768")
    names = {f"tensor {i}": f"model-{i:05}-of-09999.safetensors" for i in range(9999)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    message = check_refused(folder, "model.incomplete", error="model-00003-of-09999.safetensors and 9995 more, named")
    run = command("download Lumina-mGPT-7B-768 --to", tmp_path)
    assert message.endswith(
        f"run `{run}` (15 GB; licence: not stated; it builds on Chameleon, which is for research; "
        "Anole-7b-v0.1-vqvae-hf: Chameleon's, for research)."
    )


@pytest.mark.parametrize("marks", ['""', "''"])
def test_a_path_in_quotation_marks(tmp_path, marks):
    """Windows copies paths with quotation marks."""
    check_refused(f"{marks[0]}{tmp_path}{marks[1]}", "path.quoted")


@pytest.mark.parametrize(
    "name, content, chosen, key",
    [
        *((name, b"\x89PNG", name, "model.is_image") for name in ("cat.png", "cat.JPG")),
        *((name, b"{}", name, "model.is_text") for name in ("tokenizer.json", "README.md")),
        *(("anole.gguf", b"GGUF", chosen, "model.gguf") for chosen in ("anole.gguf", "")),
        ("model_index.json", b'{"_class_name": "FluxPipeline"}', "", "model.diffusers"),
    ],
)
def test_files_of_other_kinds(tmp_path, name, content, chosen, key):
    (tmp_path / name).write_bytes(content)
    check_refused(tmp_path / chosen, key)


@pytest.mark.parametrize("around, key", [("GLM-Image", "model.part"), ("SDXL", "model.part_of_diffusion")])
def test_parts_of_a_diffusers_model(tmp_path, around, key):
    """For GLM-Image, the parent folder is the model, and the loader must use it."""
    part = tmp_path / around / "transformer"
    part.mkdir(parents=True)
    (part / "config.json").write_text('{"_class_name": "ATransformer2DModel"}', encoding="utf-8")
    save_file({"a": torch.ones(1)}, part / "model.safetensors")
    if around == "GLM-Image":
        (part.parent / "vision_language_encoder").mkdir()
    check_refused(part, key, part="'ATransformer2DModel'")


# ---- models of other kinds -------------------------------------------------------------------------

STRANGERS = {
    "model.diffusion_checkpoint": [
        "model.diffusion_model.input_blocks.0.0.weight",
        "first_stage_model.decoder.conv_in.weight",
        "conditioner.embedders.0.transformer.text_model.embeddings.position_ids",
    ],
    "model.diffusion": [
        "input_blocks.0.0.weight",
        "down_blocks.0.resnets.0.conv1.weight",
        "double_blocks.0.img_mlp.0.bias",
    ],
    "model.adapter": [
        "lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "transformer.transformer_blocks.0.attn.to_q.lora_B.weight",
    ],
    "model.vae": ["decoder.up.0.block.0.conv1.weight", "encoder.down_blocks.0.resnets.0.conv1.bias"],
    "model.image_decoder": ["quantize.embedding.weight"],
    "model.text_encoder": [
        "text_model.encoder.layers.0.mlp.fc1.weight",
        "encoder.block.0.layer.0.SelfAttention.q.weight",
    ],
}


@pytest.mark.parametrize("key, name", [(key, name) for key, names in STRANGERS.items() for name in names])
def test_checkpoints_of_other_models(tmp_path, key, name):
    """SDXL, Flux, LoRA, PEFT, VAE and text encoders must be recognised by their tensors."""
    save_file({name: torch.ones(1)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        check_refused(path, key)


def test_janusflow(tmp_path):
    """JanusFlow has no image tokens."""
    folder = write_janus(tmp_path / "JanusFlow-1.3B", layout="deepseek")
    edit_config(folder, lambda config: config.update(vision_gen_enc_config={}, vision_gen_dec_config={}))
    edit_config(folder, lambda config: config.pop("gen_vision_config"))
    check_refused(folder, "janus.flow", remedy=command("download Janus-Pro-1B --to", tmp_path))


@pytest.mark.parametrize(
    "name, config, key",
    [
        ("Emu3.5-Image", {"architectures": ["Emu3ForCausalLM"], "vocab_size": 282926}, "emu3.version_3_5"),
        ("Emu3-Chat-hf", {}, "emu3.chat"),
        ("X-Omni-En", {"model_type": "qwen2"}, "model.x_omni"),
        ("copy", {"model_type": "x-omni"}, "model.x_omni"),
        ("BLIP3o-NEXT-SFT-3B", {"model_type": "qwen3"}, "model.blip3o"),
        ("copy", {"model_type": "blip3o_qwen"}, "model.blip3o"),
    ],
)
def test_other_models_with_image_tokens(tmp_path, name, config, key):
    """Test models of Emu3's family, and models whose decoder is a diffusion model."""
    folder = write_emu3(tmp_path / name)
    edit_config(folder, lambda content: content.update(config))
    is_emu3 = key.startswith("emu3.")
    remedy = {"command": command("download Emu3-Gen-hf --to", tmp_path)}
    check_refused(folder, key, **(remedy if is_emu3 else {"path": name}))


# ---- how large a download is -----------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in published() if row.downloads], ids=lambda row: row.name)
def test_templates_state_the_download_size(row):
    """Emu3-Gen-hf is published in float32, so the download is twice as large as the weights in memory."""
    notes = (file.read_text(encoding="utf-8") for file in (ROOT / "workflows").glob("*.json"))
    shown = [note for note in notes if f"Choose *{row.name}*" in note]
    assert all(note.count(row.size) >= 2 for note in shown), "the size must be stated in English and in Chinese"
    assert row.name != "Emu3-Gen-hf" or shown and row.size == "35 GB"
