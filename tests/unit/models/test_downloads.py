"""Tests of error messages for models that are missing, incomplete or unsupported."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adt_core import cli, load_target
from adt_core.app.inspect import inspect
from adt_core.errors import command
from adt_core.models import load
from adt_core.models.load import published
from adt_core.models.rotary import rope_tables
from adt_core.run.model_files import default_drafter
from tests.layouts.edits import check_refused, edit_config
from tests.layouts.emu3 import write_emu3
from tests.layouts.lumina import write_lumina
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

TO_GET = [row for row in published() if row.downloads]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4990000000\n"


# ---- models that are not there ---------------------------------------------------------------


@pytest.mark.parametrize("row", TO_GET, ids=lambda row: row.name)
def test_missing_published_models(row, tmp_path, capsys):
    message = check_refused(tmp_path / row.name, "model.incomplete", error="path.missing", remedy="remedy.download")
    assert f"`{command(f'download {row.name} --to', tmp_path)}`" in message
    assert f"({row.size}; licence: {row.licences})" in message and len(message) < 1000
    assert all(one.licence in message for one in row.downloads)
    assert cli.main(["generate", "--model", str(tmp_path / row.name), "--prompt", "x", "--output", "x.png"]) == 1
    assert message in capsys.readouterr().err


def test_every_family_can_be_downloaded():
    assert all(any(row.downloads for row in family.published) for family in load.FAMILIES)
    assert len({row.name for row in TO_GET}) == len(TO_GET)
    assert {"Lumina-mGPT-7B-512", "Anole-7b-v0.1-hf", "Janus-Pro-1B", "Emu3-Gen-hf"} <= {row.name for row in TO_GET}


def test_the_docs_have_the_drafters():
    docs = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    drafters = {row.drafter for row in TO_GET if row.drafter is not None}
    assert all(f"| `{one.repository}` |" in docs and f"| {one.size} | {one.licence} |" in docs for one in drafters)


def test_folders_with_a_space_can_be_copied_to_a_terminal():
    assert TO_GET[0].downloads[0].command(Path("my models")).endswith('download Anole-7b-v0.1-hf --to "my models"')


def test_incomplete_downloads(tmp_path):
    folder = write_emu3(tmp_path / "Emu3-Gen-hf")
    (folder / "model-00002-of-00002.safetensors").unlink()
    run = command("download Emu3-Gen-hf --to", tmp_path)
    check_refused(folder, "model.incomplete", error="model-00002-of-00002.safetensors", remedy=f"run `{run}`")


@pytest.mark.parametrize("version", ["512", "768-Omni", "1024"])
def test_lumina_without_a_tokenizer(tmp_path, version):
    folder = write_lumina(tmp_path / f"Lumina-mGPT-7B-{version}", size_tokens=33)
    (folder / "tokenizer.json").unlink()
    run = command(f"download Lumina-mGPT-7B-{version} --to", tmp_path)
    with raises_key("lumina.no_tokenizer") as raised:
        load_target(folder)
    (found,) = inspect(str(folder))
    assert run in str(raised.value) and run in found["to_do"][0]


def test_lumina_without_its_codec(tmp_path):
    folder = write_lumina(tmp_path / "models" / "Lumina-mGPT-7B-768")
    (tmp_path / "models" / "vqgan.ckpt").unlink()
    run = command("download Anole-7b-v0.1-vqvae-hf --to", tmp_path / "models")
    with raises_key("tensors.missing", remedy=f"run `{run}`"):
        load_target(folder)


# ---- how large Lumina's images are -------------------------------------------------------------


@pytest.mark.parametrize("name", ["lumina", "my-finetune", "Lumina-512-or-768"])
def test_lumina_without_a_size_in_its_name(tmp_path, name):
    check_refused(write_lumina(tmp_path / name), "lumina.no_size", path=name)


@pytest.mark.parametrize("size", [512, 768, 1024])
def test_lumina_in_the_cache_of_hugging_face(tmp_path, size):
    """Test three paths: the folder models--..., its folder of snapshots, and one snapshot."""
    cache = tmp_path / f"models--Alpha-VLLM--Lumina-mGPT-7B-{size}"
    write_lumina(cache / "snapshots" / "768abc", size_tokens=33)
    (cache / "snapshots" / "vqgan.ckpt").rename(tmp_path / "vqgan.ckpt")
    for path in (cache, cache / "snapshots", cache / "snapshots" / "768abc"):
        target = load_target(path)
        assert target.name == f"Lumina-mGPT-7B-{size}" and target.grid == (size // 16, size // 16)


def test_several_snapshots(tmp_path):
    cache = tmp_path / "models--somebody--tiny"
    for name, hidden in (("one", 32), ("two", 64)):
        write_tiny_checkpoint(cache / "snapshots" / name, hidden=hidden)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("one", encoding="utf-8")
    assert load_target(cache).decoder.config.hidden_size == 32
    shutil.rmtree(cache / "snapshots")
    (cache / "snapshots").mkdir()
    assert check_refused(cache, "cache.unfinished") == check_refused(cache / "snapshots", "cache.unfinished")


# ---- other files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointers(target, name):
    """In a git clone, git can download the file. In other folders it can't, even inside of a clone of ComfyUI."""
    (target / name).write_text(POINTER, encoding="utf-8")
    (target.parent / ".git").mkdir()
    with raises_key("file.is_pointer", file=name):
        load_target(target)
    (target.parent / ".git").rename(target / ".git")
    with raises_key("file.not_pulled", file=name, folder=target):
        load_target(target)


def test_truncated_bin_files(target):
    file = target / "pytorch_model.bin"
    torch.save(load_file(target / "model.safetensors"), file)
    (target / "model.safetensors").unlink()
    load_target(target)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    check_refused(target, "file.incomplete", file="pytorch_model.bin")


def test_emu3_in_its_authors_layout(tmp_path):
    folder = write_emu3(tmp_path / "Emu3-Gen")
    config = {"model_type": "Emu3", "architectures": ["Emu3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    check_refused(folder, "emu3.other_layout", command=command("download Emu3-Gen-hf --to", tmp_path))


def test_a_quantised_repository(target):
    stated = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    edit_config(target, lambda config: config.update(quantization_config=stated))
    check_refused(target, "model.quantised", sign="by 'bitsandbytes'")


@pytest.mark.parametrize("place, given", [("", ""), ("", "consolidated.pth"), ("models/7b", "")])
def test_anole_in_metas_layout(tmp_path, place, given):
    folder = tmp_path / "Anole-7b-v0.1"
    (folder / place).mkdir(parents=True)
    torch.save({"tok_embeddings.weight": torch.zeros(2, 2)}, folder / place / "consolidated.pth")
    check_refused(folder / given, "model.meta", command="download Anole-7b-v0.1-hf --to")


def test_a_drafter_chosen_as_model(tiny):
    with raises_key("model.is_drafter"):
        load_target(tiny / "drafter")
    assert inspect(str(tiny / "drafter"))[0]["role"] == "drafter"


def test_shards_without_an_index_or_a_configuration(tmp_path):
    folder = write_emu3(tmp_path / "target")
    (folder / "model.safetensors.index.json").unlink()
    load_target(folder)
    (folder / "model-00001-of-00002.safetensors").unlink()
    check_refused(folder, "index.missing_parts", missing="model-00001-of-00002.safetensors")
    complete = write_emu3(tmp_path / "complete")
    (complete / "config.json").unlink()
    check_refused(complete, "model.no_config")


# ---- fewer positions than an image has -----------------------------------------------------------


@pytest.mark.parametrize("stated", [100, 3000])
def test_a_configuration_with_too_few_positions(tmp_path, stated):
    """The loader computes rotary tables for more positions than the configuration states, like the authors' code."""
    folders = (write_lumina(tmp_path / str(n) / "Lumina-768", max_positions=n) for n in (stated, 5000))
    one, other = (load_target(folder, dtype=torch.float64) for folder in folders)
    assert one.decoder.config.max_positions >= one.length + 64 and one.length == 48 * 49
    tables = [rope_tables(target.decoder.config, target.decoder.embedding) for target in (one, other)]
    count = min(len(table[0]) for table in tables)
    assert count > one.length and all(torch.equal(a[:count], b[:count]) for a, b in zip(*tables))
    assert len(one.encode_prompt("a red house")) + one.length < one.decoder.config.max_positions


# ---- drafters next to the model ------------------------------------------------------------------


@pytest.mark.parametrize("place", ["ar_image", "ar_image_drafters", "ar_image_drafters/sihwanpark"])
def test_published_drafters_are_found(tmp_path, place):
    model = tmp_path / "models" / "ar_image" / "Lumina-mGPT-7B-768"
    drafter = tmp_path / "models" / place / "LANTERN-Lumina-mGPT-7B-768"
    assert default_drafter(str(model)) == "jacobi"
    drafter.mkdir(parents=True)
    (drafter / "config.json").write_text("{}", encoding="utf-8")
    assert default_drafter(str(model)) == str(drafter)
    cached = model.parent / "models--Alpha-VLLM--Lumina-mGPT-7B-768" / "snapshots" / "abc"
    assert default_drafter(str(cached)) == str(drafter)
    assert default_drafter(str(model.parent / "Lumina-mGPT-7B-1024")) == "jacobi"
    assert default_drafter("bundled") == "bundled"
