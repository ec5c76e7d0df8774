"""Tests of the folder for downloads and new drafters, with folders of extra_model_paths.yaml."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def load_paths(pack, tmp_path, monkeypatch):
    """Return a function that starts with an extra_model_paths.yaml, as ComfyUI does, and returns `nodes.folders`."""
    import folder_paths
    from comfy.cli_args import args
    from utils.extra_config import load_extra_path_config

    folders = pack.package(".nodes.folders")
    config = tmp_path / "extra_model_paths.yaml"

    def load(text: str):
        config.write_text(text.format(share=tmp_path / "share"), encoding="utf-8")
        known = folder_paths.folder_names_and_paths
        others = {key: value for key, value in known.items() if not key.startswith("ar_image")}
        monkeypatch.setattr(folder_paths, "folder_names_and_paths", others)
        monkeypatch.setattr(args, "extra_model_paths_config", [[str(config)]])
        load_extra_path_config(str(config))
        folders.register()
        return folders

    return load


SECTION = """
share:
    base_path: {{share}}
    {default}
    ar_image_models: |
        first/
        second
    ar_image_drafters: drafters
"""
OWN = "ar_image", "ar_image_drafters"


def test_downloads_go_to_the_packs_own_folders(pack, load_paths):
    """ComfyUI reads the file before it loads the pack, so the file's folders are the first of the list."""
    folders = load_paths(SECTION.format(default=""))
    models = pack.base / "models"
    assert (folders.home(), folders.drafters_home()) == tuple(models / name for name in OWN)
    assert folders.new_drafter("mine") == models / "ar_image_drafters" / "mine"


@pytest.mark.parametrize("section", ["share", "another"])
def test_downloads_go_to_the_default_folders(load_paths, tmp_path, section):
    """Of several default folders, ComfyUI puts the last one first. The section "another" has no folder of drafters."""
    other = "\nanother:\n    base_path: {share}\n    ar_image_models: third\n"
    marks = {"share": (SECTION.format(default="is_default: true") + other, "second", "drafters")}
    marks["another"] = (SECTION.format(default="") + other + "    is_default: true\n", "third", None)
    text, models, drafters = marks[section]
    folders = load_paths(text)
    assert folders.home() == tmp_path / "share" / models
    if drafters is not None:
        assert folders.new_drafter("mine") == tmp_path / "share" / drafters / "mine"
    else:
        assert folders.drafters_home().name == OWN[1]


def test_relative_paths_and_variables(load_paths, tmp_path, monkeypatch):
    monkeypatch.setenv("ADT_TEST_SHARE", str(tmp_path))
    assert load_paths("a:\n  is_default: true\n  ar_image_models: near\n").home() == tmp_path / "near"
    text = "a:\n  is_default: true\n  base_path: $ADT_TEST_SHARE\n  ar_image_models: far\n"
    assert load_paths(text).home() == tmp_path / "far"


@pytest.mark.parametrize(
    "text", ["", "a:\n", "a: 3\nb: [1]\n", "a:\n  is_default: true\n  ar_image_models: 3\n", "[1]"]
)
def test_other_contents_of_the_file(load_paths, pack, tmp_path, monkeypatch, text):
    """ComfyUI does not start with some of these files, but it also reads files that were changed since its start."""
    folders = load_paths(SECTION.format(default=""))
    (tmp_path / "extra_model_paths.yaml").write_text(text, encoding="utf-8")
    assert folders.home() == pack.base / "models" / "ar_image"
    (tmp_path / "extra_model_paths.yaml").unlink()
    assert folders.home() == pack.base / "models" / "ar_image"


def test_the_next_writable_folder_is_used(load_paths, pack, tmp_path, monkeypatch):
    folders = load_paths(SECTION.format(default="is_default: true"))
    share = tmp_path / "share"
    share.write_bytes(b"")  # nothing can be written below a file, not even by root
    assert folders.home() == pack.base / "models" / "ar_image"
    share.unlink()
    assert folders.home() == share / "second"
    assert not share.exists(), "a check writes nothing"
    monkeypatch.setattr(folders, "is_writable", lambda folder: False)
    assert folders.home() == share / "second", "the error of the download names it"


def test_an_earlier_training_is_continued_where_it_is(load_paths, pack, tmp_path):
    folders = load_paths(SECTION.format(default=""))
    earlier = tmp_path / "share" / "drafters" / "mine"
    earlier.mkdir(parents=True)
    assert folders.new_drafter("mine") == earlier
    shutil.rmtree(earlier)
    assert folders.new_drafter("mine") == Path(pack.base, "models", "ar_image_drafters", "mine")
