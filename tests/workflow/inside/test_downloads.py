"""Tests of downloads with the loaders' input *if_missing*, and of the models that the loaders list."""

import shutil

import pytest
from small import SMALL

from tests.hub import Hub
from tests.hub_models import JANUS, LLAMAGEN, publish
from tests.layouts.janus import write_janus


@pytest.fixture(scope="module")
def published(pack, tmp_path_factory):
    """Start a local Hub server. Afterwards, delete everything that was downloaded from it."""
    homes = [pack.base / "models" / name for name in ("ar_image", "ar_image_drafters")]
    before = {path for home in homes for path in home.glob("*")}
    with Hub() as hub:
        publish(hub, tmp_path_factory.mktemp("hub") / "models")
        yield hub
    for path in {path for home in homes for path in home.glob("*")} - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def hub(published, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", published.address)
    monkeypatch.setenv("HF_HOME", "/nonexistent")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    published.requests.clear()
    return published


@pytest.fixture
def folders(pack):
    return pack.package(".nodes.folders")


@pytest.fixture
def downloading(pack):
    return pack.package(".nodes.downloading")


def listed(pack):
    return pack.ours["ADTTreeModelLoader"]["input"]["optional"]["model"][1]


@pytest.fixture
def load(pack):
    """Return a function that loads a model with *if_missing* set to *download*."""
    return lambda name, **more: pack.run("ADTTreeModelLoader", model=name, dtype="auto", if_missing="download", **more)


def test_nothing_is_downloaded_by_default(pack, hub):
    message = pack.fails("ADTTreeModelLoader", model=JANUS, dtype="auto")
    assert f"'{JANUS}' is not installed; set if_missing to 'download' and run again, or run `" in message
    assert hub.requests == []


def test_download_happens_once(pack, hub, load, folders):
    assert JANUS in listed(pack)["downloads"]
    model, *_ = load(JANUS)
    assert model.target.name == JANUS and folders.installed(JANUS)
    assert JANUS in listed(pack)["options"] and JANUS not in listed(pack)["downloads"]
    hub.requests.clear()
    load(JANUS)
    assert hub.requests == [], "complete models need no request"


def test_all_parts_of_llamagen_and_its_drafter_are_downloaded(pack, hub, load):
    model, *_ = load(LLAMAGEN)
    assert model.target.name == LLAMAGEN
    assert pack.package(".nodes.folders").drafter_for(model.path).endswith("llamagen2_drafter")
    part = pack.base / "models" / "ar_image" / "flan-t5-xl" / "tokenizer.json"
    part.unlink()
    load(LLAMAGEN)
    assert part.exists(), "missing parts are downloaded too"


def test_incomplete_model_is_completed_in_its_folder(pack, hub, load):
    load(JANUS)
    home = pack.base / "models" / "ar_image"
    (home / "makers").mkdir()
    (home / JANUS).rename(home / "makers" / JANUS)
    (home / "makers" / JANUS / "tokenizer.json").unlink()
    load(f"makers/{JANUS}")
    assert (home / "makers" / JANUS / "tokenizer.json").exists() and not (home / JANUS).exists()


def test_unpublished_model_is_never_downloaded(pack, hub, load):
    assert load(SMALL) and load("bundled")
    with pytest.raises(pack.AdtError, match="is in no folder"):
        load("someone/model")
    assert hub.requests == []


@pytest.mark.parametrize(
    "listen, refused",
    [
        ("127.0.0.1", False),
        ("localhost", False),
        ("127.0.0.1,::1", False),
        ("0.0.0.0,::", True),
        ("127.0.0.1,192.168.1.5", True),
        ("comfy.example", True),
    ],
)
def test_public_server_downloads_only_if_its_owner_allows_it(
    pack, hub, load, downloading, monkeypatch, listen, refused
):
    wanted = []
    monkeypatch.setattr(downloading.args, "listen", listen)
    monkeypatch.setattr(downloading, "download", lambda *parts: wanted.append(parts))
    monkeypatch.delenv("ADT_TREE_ALLOW_DOWNLOAD", raising=False)
    with pytest.raises(pack.AdtError) as error:
        load("Emu3-Gen-hf")
    assert ("set the environment variable ADT_TREE_ALLOW_DOWNLOAD=1" in str(error.value)) == refused
    assert bool(wanted) != refused
    monkeypatch.setenv("ADT_TREE_ALLOW_DOWNLOAD", "1")
    with pytest.raises(pack.AdtError, match="is not installed"):  # the fake download installs nothing
        load("Emu3-Gen-hf")
    assert wanted


@pytest.mark.parametrize("gigabytes, fits", [(80, ""), (12, "int8"), (8, "int4"), (6, "no")])
def test_list_shows_whether_a_model_fits_the_gpu(pack, downloading, monkeypatch, gigabytes, fits):
    import torch

    monkeypatch.setattr(downloading.mm, "get_torch_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(downloading.mm, "get_total_memory", lambda device: gigabytes * 2**30)
    assert downloading.offered_downloads()["Janus-Pro-7B"] == {"size": "15 GB", "fits": fits}


def test_list_shows_the_size_without_a_gpu(downloading):
    assert downloading.offered_downloads()["Janus-Pro-7B"] == {"size": "15 GB", "fits": ""}


@pytest.mark.parametrize("place", ["Janus-Pro", "LLM", "ar_image", "diffusers"])
def test_models_of_other_packs_are_found(pack, folders, tmp_path, monkeypatch, place):
    folder = pack.base / "models" / place / "Janus-Pro-7B"
    write_janus(folder)
    try:
        assert folders.installed("Janus-Pro-7B") == str(folder)
        assert "Janus-Pro-7B" in listed(pack)["options"]
    finally:
        shutil.rmtree(folder)


def test_extra_model_paths_key_ar_image_is_read(pack, folders, tmp_path, monkeypatch):
    import folder_paths

    write_janus(tmp_path / "shared" / "deepseek" / "Janus-Pro-7B")
    known = {**folder_paths.folder_names_and_paths, "ar_image": ([str(tmp_path / "shared")], set())}
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", known)
    assert folders.installed("Janus-Pro-7B") == str(tmp_path / "shared" / "deepseek" / "Janus-Pro-7B")
    renamed = listed(pack)["renamed"]
    assert renamed["Janus-Pro-7B"] == renamed["Janus-Pro-7B (not installed)"] == "deepseek/Janus-Pro-7B"
