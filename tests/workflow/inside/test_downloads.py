"""Tests of downloads with the loaders' input *if_missing*, and of the models that the loaders list."""

import json
import shutil

import pytest
from huggingface_hub import constants
from small import SMALL

from tests.hub import COMMIT, Hub
from tests.hub_models import JANUS, LLAMAGEN, publish
from tests.layouts.janus import write_janus
from tests.raising import check_error, raises_key


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
    monkeypatch.setattr(constants, "ENDPOINT", published.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    published.requests.clear()
    return published


@pytest.fixture
def without_janus(pack):
    """Delete what other tests have downloaded of Janus-Pro."""
    for name in (JANUS, JANUS.lower(), "makers"):
        shutil.rmtree(pack.base / "models" / "ar_image" / name, ignore_errors=True)


@pytest.fixture
def folders(pack):
    return pack.package(".nodes.folders")


@pytest.fixture
def downloading(pack):
    return pack.package(".nodes.missing_models")


def listed(pack):
    return pack.ours["ADTTreeModelLoader"]["input"]["optional"]["model"][1]


@pytest.fixture
def load(pack):
    return lambda name, **more: pack.run("ADTTreeModelLoader", model=name, dtype="auto", if_missing="download", **more)


def test_nothing_is_downloaded_by_default(pack, hub):
    check_error(pack.fails("ADTTreeModelLoader", model=JANUS, dtype="auto"), "model.not_there", name=JANUS)
    assert hub.requests == []


def test_download_happens_once(pack, hub, load, folders):
    assert JANUS in listed(pack)["downloads"]
    model, *_ = load(JANUS)
    assert model.target.name == JANUS and folders.installed(JANUS)
    assert JANUS in listed(pack)["options"] and JANUS not in listed(pack)["downloads"]
    hub.requests.clear()
    load(JANUS)
    assert hub.requests == [], "complete models need no request"


def test_a_cancelled_download_states_what_is_kept(pack, hub, load, downloading, without_janus, monkeypatch, caplog):
    def kept() -> int:
        folder = pack.base / "models" / "ar_image" / JANUS
        return sum(path.stat().st_size for path in folder.rglob(".*.adt-tree.download"))

    def cancel() -> None:
        if kept() > 100_000:
            raise pack.Cancelled

    with monkeypatch.context() as patch, pytest.raises(pack.Cancelled), caplog.at_level("INFO"):
        patch.setattr(downloading, "check_cancelled", cancel)
        load(JANUS)
    assert caplog.messages[-1] == f"ADT-Tree: {kept() / 1e6:.1f} MB kept. Press Run to resume."
    load(JANUS)
    assert kept() == 0


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


@pytest.mark.parametrize("place", [JANUS.lower(), f"models--deepseek-community--{JANUS}/snapshots/{COMMIT}"])
def test_incomplete_folders_with_other_names_are_completed(pack, hub, load, place, without_janus):
    """Also if the name in the workflow has small letters, and if the folder lacks a configuration."""
    home = pack.base / "models" / "ar_image"
    load(JANUS)
    (home / place).parent.mkdir(parents=True, exist_ok=True)
    (home / JANUS).rename(home / place)
    (home / place / "model.safetensors").unlink()
    (home / place / "config.json").unlink()
    hub.requests.clear()
    model, *_ = load(JANUS.lower())
    assert model.path == str(home / place) and not (home / JANUS).exists()
    assert {path.rpartition("/")[2] for path in hub.fetched()} == {"model.safetensors", "config.json"}
    hub.requests.clear()
    load(JANUS.lower())
    assert hub.requests == []
    shutil.rmtree(home / place.split("/")[0])


@pytest.mark.parametrize("name", [JANUS, JANUS.lower()])
def test_unusable_folders_of_other_packs_stay_as_they_are(pack, hub, load, name, without_janus):
    theirs = pack.base / "models" / "LLM" / JANUS
    theirs.mkdir(parents=True)
    config = {"model_type": "janus", "made by": "another pack"}
    (theirs / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        model, *_ = load(name)
        assert model.path == str(pack.base / "models" / "ar_image" / JANUS)
        assert [path.name for path in theirs.iterdir()] == ["config.json"]
        assert json.loads((theirs / "config.json").read_text(encoding="utf-8")) == config
    finally:
        shutil.rmtree(theirs)


def test_a_missing_drafter_is_downloaded_for_a_complete_model(pack, hub, load):
    load(LLAMAGEN)
    drafter = pack.base / "models" / "ar_image_drafters" / "llamagen2_drafter"
    hub.requests.clear()
    files = list(drafter.iterdir())
    assert len(files) == 2
    for file in files:  # the configuration and the weights
        file.unlink()
        load(LLAMAGEN)
        assert file.exists()
    assert {path.split("/resolve/")[0] for path in hub.fetched()} == {"/jadohu/llamagen2_drafter"}
    hub.requests.clear()
    drafter.rename(drafter.with_name("makers-llamagen2_drafter"))
    (drafter.parent / "makers").mkdir()
    drafter.with_name("makers-llamagen2_drafter").rename(drafter.parent / "makers" / drafter.name)
    load(LLAMAGEN)
    assert hub.requests == [], "a drafter in another folder is found"
    shutil.rmtree(drafter.parent / "makers")


def test_an_incomplete_second_stage_is_completed(pack, hub, downloading, monkeypatch, tmp_path):
    """Both stages are in one folder. A folder with the first stage only is not incomplete."""
    wanted = []
    monkeypatch.setattr(downloading, "fetch", lambda parts, node: wanted.append([part.download.name for part in parts]))
    monkeypatch.setattr(downloading, "is_complete", lambda path: True)
    stage = tmp_path / "GLM-Image" / "vision_language_encoder"
    monkeypatch.setattr(downloading.folders, "installed", lambda name: str(stage))
    for folder in (stage, *(stage.parent / name for name in ("transformer", "text_encoder", "vae"))):
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_bytes(b"{}")
    downloading.download_missing("GLM-Image", "1")
    assert wanted == []
    (stage.parent / "vae" / "model.safetensors").unlink()
    downloading.download_missing("GLM-Image", "1")
    assert wanted == [["GLM-Image"]]
    for name in ("transformer", "text_encoder", "vae"):
        shutil.rmtree(stage.parent / name)
    downloading.download_missing("GLM-Image", "1")
    assert len(wanted) == 1


def test_the_licence_is_shown_before_and_during_the_download(pack, hub, load, downloading, monkeypatch, without_janus):
    lines = []
    monkeypatch.setattr(downloading.Progress, "say", lambda self, text, *_: lines.append((text, len(hub.fetched()))))
    load(JANUS)
    licence = "licence: DeepSeek's model licence (https://huggingface.co/deepseek-community/Janus-Pro-1B)"
    assert lines[0] == (f"Asking the Hub for the list of files; {licence}", 0)
    assert all(line.endswith(f"; {licence}") for line, _ in lines) and "Downloading: " in lines[-1][0]


def test_unpublished_model_is_never_downloaded(pack, hub, load):
    assert load(SMALL) and load("bundled")
    with raises_key("model.no_folder"):
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
    monkeypatch.setattr(downloading, "download_parts", lambda *parts: wanted.append(parts))
    monkeypatch.delenv("ADT_TREE_ALLOW_DOWNLOAD", raising=False)
    with raises_key("if_missing.off" if refused else "model.not_there"):
        load("Emu3-Gen-hf")
    assert bool(wanted) != refused
    monkeypatch.setenv("ADT_TREE_ALLOW_DOWNLOAD", "1")
    with raises_key("model.not_there"):  # the fake download installs nothing
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
    assert listed(pack)["installed"]["Janus-Pro-7B"] == "deepseek/Janus-Pro-7B"
