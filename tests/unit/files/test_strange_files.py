"""Tests of unusual files at paths that the pack reads or writes.

The pack must not write through links. Pipes and devices must not block. Images must be opened only in a few formats.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from adt_tree_pack.nodes import contact_sheet
from PIL import EpsImagePlugin, Image

from adt_core import cache_folder, cli
from adt_core.app.continuation import open_rgb
from adt_core.engine.device import profiles
from adt_core.errors import AdtError
from adt_core.files import add_line, inside, is_regular, opened, read_text, write_in
from adt_core.lab import quality
from adt_core.lab.records import RUNS, open_records
from adt_core.lab.training.dataset import TrainingImages, find_captioned
from adt_core.lab.training.features import Features
from adt_core.lab.training.save import write_checkpoint
from adt_core.policies.cost_model import CostModel
from adt_core.run.images import FORMATS, MAX_IMAGE_MIB, named_folder, read_pixels, read_settings
from adt_core.run.model_files import checkpoint_files
from tests.layouts.llamagen import write_hugging_face
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

SECRET = b"secret"
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


class Hung(BaseException):
    """Error of the time limit. It isn't a subclass of Exception, so that tested code doesn't catch it."""


@pytest.fixture(autouse=True)
def in_time():
    """Fail a test that waits for the other end of a pipe."""

    def hung(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def secret(tmp_path):
    """Return a file outside of the pack's folders."""
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def pack_folder(tmp_path):
    """Return the folder of the pack."""
    (tmp_path / "pack").mkdir()
    return tmp_path / "pack"


def at(path: Path, kind: str) -> Path:
    """Create something that isn't a regular file at a path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        before = os.getcwd()
        os.chdir(path.parent)  # the name of a socket must be short, so it is relative
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(before)
    return path


KINDS = pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])


# ---- links -------------------------------------------------------------------


def test_writing_replaces_a_link(pack_folder, secret):
    (pack_folder / "a.json").symlink_to(secret)
    write_in(pack_folder, "a.json", b"content")
    assert secret.read_bytes() == SECRET and not (pack_folder / "a.json").is_symlink()
    assert (pack_folder / "a.json").read_bytes() == b"content"


def test_a_linked_folder_is_refused(pack_folder, secret):
    (pack_folder / "images").symlink_to(secret.parent)
    for name in ("images/a.png", "images/deeper/a.png"):
        with raises_key("file.is_link", path="images"):
            write_in(pack_folder, name, b"content")
    assert list(secret.parent.iterdir()) == [secret]
    (pack_folder.parent / "same").symlink_to(pack_folder)
    write_in(pack_folder.parent / "same", "deeper/a.png", b"content")  # the user may replace the folder by a link
    assert (pack_folder / "deeper" / "a.png").read_bytes() == b"content"


def test_lines_are_not_appended_through_a_link(pack_folder, secret):
    (pack_folder / RUNS).symlink_to(secret)
    with raises_key("file.is_link"):
        add_line(pack_folder / RUNS, "{}")
    with raises_key("file.is_link"):
        open_records(pack_folder, {"prompts": [], "methods": {}})
    assert secret.read_bytes() == SECRET


def test_a_junction_counts_as_a_link(pack_folder, monkeypatch):
    """On Windows, lstat marks a junction, but a junction isn't a symbolic link."""

    class Junction:
        st_mode = 0o040777
        st_reparse_tag = 0xA0000003

    (pack_folder / "key").mkdir()
    assert inside(pack_folder, "key") == pack_folder / "key"
    monkeypatch.setattr(os, "lstat", lambda path: Junction)
    with raises_key("file.is_link"):
        inside(pack_folder, "key")


@pytest.mark.parametrize("name", ["", "cats"])
def test_the_folder_of_a_list_must_not_be_a_link(pack_folder, secret, name):
    folder = named_folder(pack_folder, "key", name, "model")
    folder.symlink_to(secret.parent)
    with raises_key("file.is_link", path=folder):
        named_folder(pack_folder, "key", name, "model")


def test_costs_are_not_written_to_a_link_or_read_from_a_pipe(pack_folder, secret, monkeypatch):
    monkeypatch.setenv(cache_folder.VARIABLE, str(pack_folder))
    model = CostModel("a model", 1, (), on_cpu=True)
    profiles.save_costs(model)
    (path,) = pack_folder.iterdir()
    path.unlink()
    path.symlink_to(secret)
    profiles.save_costs(model)
    assert secret.read_bytes() == SECRET and profiles.find_costs("a model", 1) == model.to_json()
    path.unlink()
    os.mkfifo(path)
    assert profiles.find_costs("a model", 1) is None


def test_reports_and_drafters_are_not_written_through_a_link(pack_folder, secret):
    figures = {"tokens": 1, "tau": 1.0, "mean_depth": 1.0, "substitution_rate": 0.0}
    row = {"id": "1", "prompt": "a cat", "seed": 1, "seconds": 1.0, "target_forwards": 1, "file": "a.png", **figures}
    for name in ("config.json", "model.safetensors", "report.csv", "report.json", "report.png"):
        (pack_folder / name).symlink_to(secret)
    write_checkpoint(pack_folder, {"a": torch.zeros(1)}, {}, torch.float16)
    contact_sheet.write_report([row], {}, Image.new("RGB", (8, 8)), pack_folder, "report")
    assert secret.read_bytes() == SECRET and not any(path.is_symlink() for path in pack_folder.iterdir())


def test_codes_of_images_are_not_written_through_a_link(pack_folder, secret):
    codes = np.full((1, 4), -1, np.int32)
    with secret.open("wb") as file:
        np.save(file, codes)
    (pack_folder / "codes.npy").symlink_to(secret)
    with raises_key("file.is_link", path="codes.npy"):
        TrainingImages(pack_folder / "codes.npy", ["a cat"], 4, 8)
    assert (np.load(secret) == codes).all()


def test_a_drafters_output_has_no_linked_folders(pack_folder, secret, tmp_path, capsys):
    (pack_folder / "training").symlink_to(secret.parent)
    (tmp_path / "list.txt").write_text("\n".join(f"cat {number}" for number in range(9)), encoding="utf-8")
    given = ["--validation-prompts", "1", "--training-batch-size", "1", "--steps", "1", "--output", str(pack_folder)]
    assert cli.main(["train-drafter", "--prompts", str(tmp_path / "list.txt"), *given]) == 2
    assert "training' is a link" in capsys.readouterr().err and list(secret.parent.iterdir()) == [secret]


# ---- files that are not regular ----------------------------------------------------


@KINDS
def test_irregular_files_are_refused_immediately(pack_folder, kind):
    path = at(pack_folder / "odd", kind)
    assert not is_regular(path)
    for read in (opened, lambda path: read_text(path, 1)):
        with pytest.raises(OSError):
            read(path)
    with raises_key("png.unreadable"):
        read_settings(path)
    with raises_key("image.unreadable", input="continue_from"):
        open_rgb(path, "continue_from")
    assert read_pixels(path, (8, 8)) is None


@KINDS
def test_records_and_codes_must_be_regular_files(pack_folder, kind):
    at(pack_folder / RUNS, kind)
    with raises_key("benchmark.unreadable", path=RUNS):
        open_records(pack_folder, {"prompts": [], "methods": {}})
    at(pack_folder / "codes.npy", kind)
    with pytest.raises(AdtError) as raised:  # the error depends on the kind of file
        TrainingImages(pack_folder / "codes.npy", ["a cat"], 4, 8)
    assert "codes.npy" in raised.value.parameters["path"]
    at(pack_folder / "0.safetensors", kind)
    assert Features(pack_folder, 0).get([0], [0], torch.device("cpu")) is None


@KINDS
def test_training_images_must_be_files(pack_folder, kind):
    at(pack_folder / "1.jpg", kind)
    Image.new("RGB", (8, 8)).save(pack_folder / "2.jpg")
    at(pack_folder / "2.txt", kind)
    with raises_key("caption.unreadable", path="2.txt"):
        find_captioned(pack_folder)
    (pack_folder / "2.txt").unlink() if kind != "folder" else (pack_folder / "2.txt").rmdir()
    (pack_folder / "2.txt").write_text("a cat", encoding="utf-8")
    assert find_captioned(pack_folder) == ([pack_folder / "2.jpg"], ["a cat"])


def test_weights_for_quality_must_be_files(pack_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", SimpleNamespace(calculate_metrics=None))
    os.mkfifo(pack_folder / "pytorch_model.bin")
    (pack_folder / "config.json").write_text("{}", encoding="utf-8")
    with raises_key("clip.not_a_file", path="pytorch_model.bin"):
        quality.clip_metric(pack_folder, "clip", "CLIP score", torch.device("cpu"))
    (pack_folder / "deeper").mkdir()
    (pack_folder / "pytorch_model.bin").rename(
        pack_folder / "deeper" / "template.jinja"
    )  # transformers also looks for this file
    with raises_key("clip.not_a_file", path="template.jinja"):
        quality.clip_metric(pack_folder, "clip", "CLIP score", torch.device("cpu"))
    (pack_folder / "deeper" / "template.jinja").rename(pack_folder / "pytorch_model.bin")
    with raises_key("scores.no_tensors", reason="not a regular file"):
        quality.inception_metric(pack_folder / "pytorch_model.bin", None, 2, torch.device("cpu"))


@pytest.mark.parametrize("option", ["--from-png", "--continue-from", "--prompts"])
def test_the_command_line_does_not_wait_for_a_pipe(tmp_path, capsys, option):
    os.mkfifo(tmp_path / "a.png")
    subject = ["--prompt", "a cat"] if option == "--continue-from" else []
    given = [option, str(tmp_path / "a.png"), "--output", str(tmp_path / "b.png")]
    assert cli.main(["generate", *subject, *given]) != 0
    message = capsys.readouterr().err
    assert "it is not a regular file" in message and option.removeprefix("--") in message + "from-png"


# ---- images ----------------------------------------------------------------------


def test_an_image_starts_no_other_program(pack_folder, monkeypatch):
    """For EPS images, Pillow calls Ghostscript, whatever the file's name is."""
    Image.new("RGB", (8, 8)).save(pack_folder / "photo.eps")
    photo = (pack_folder / "photo.eps").rename(pack_folder / "photo.png")
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    with raises_key("image.unreadable", reason="not one of PNG, JPEG, WEBP, BMP, GIF, TIFF"):
        open_rgb(photo, "continue_from")
    with raises_key("png.unreadable", reason="of another format"):
        read_settings(photo)


@pytest.mark.parametrize("format", FORMATS)
def test_common_image_formats_are_opened(pack_folder, format):
    Image.new("RGB", (8, 6), (200, 10, 30)).save(pack_folder / "picture", format)
    assert open_rgb(pack_folder / "picture", "--images").size == (8, 6)


def test_a_file_too_large_for_an_image(pack_folder):
    Image.new("RGB", (8, 8)).save(pack_folder / "a.png")
    os.truncate(pack_folder / "a.png", MAX_IMAGE_MIB * 2**20 + 1)  # the file is sparse, so it needs no disk space
    with raises_key("image.unreadable", reason="it has 512 MiB, but at most 512 are read"):
        open_rgb(pack_folder / "a.png", "--images")


# ---- results that would overwrite inputs -------------------------------------------


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return a folder with models. It is the working directory of the command."""
    monkeypatch.chdir(tmp_path)
    write_tiny_checkpoint(tmp_path / "target")
    write_tiny_drafter(tmp_path / "drafter", tmp_path / "target")
    (tmp_path / "target" / "blob").write_bytes((tmp_path / "target" / "model.safetensors").read_bytes())
    (tmp_path / "target" / "model.safetensors").unlink()
    (tmp_path / "target" / "model.safetensors").symlink_to("blob")  # as in Hugging Face's cache
    for name in ("list.txt", "list.jsonl"):
        (tmp_path / name).write_text('"a cat"\n"a dog"\n"a cow"\n', encoding="utf-8")
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


GENERATE = "generate --model target --drafter drafter --prompt cat --output o.png"
TRAIN = (
    "train-drafter --model target --steps 1 --validation-prompts 1 --training-batch-size 1 --every 1 "
    "--generation-batch-size 4"
)


@pytest.mark.parametrize(
    "line, words",
    [
        (f"{GENERATE} --report target/config.json", "--report: 'target/config.json' is a file of --model"),
        (f"{GENERATE} --tokens target/model.safetensors", "--tokens: 'target/model.safetensors' is a file of --model"),
        (f"{GENERATE} --tokens target/blob", "is a file of --model"),
        (f"{GENERATE} --trace hard.json", "is a file of --model"),
        (f"{GENERATE} --trace target/../target/tokenizer.json", "is a file of --model"),
        (f"{GENERATE} --report drafter/model.safetensors", "is a file of --drafter"),
        (f"{GENERATE} --drafter drafter+jacobi --report drafter/config.json", "is a file of --drafter"),
        ("benchmark --model target --drafter drafter --prompts list.jsonl --output runs", "is the file of --prompts"),
        (f"{TRAIN} --prompts out/log.csv --output out", "is the file of --prompts"),
        (f"{TRAIN} --prompts list.txt --output drafter --compare drafter", "is a file of --compare"),
        (f"{TRAIN} --images photos --output photos", "--output is the folder of --images"),
        ("check-drafter --model target --drafter drafter --prompts drafter/pairing.json", "is the file of --prompts"),
    ],
)
def test_no_result_overwrites_an_input(model, capsys, monkeypatch, line, words):
    """The error must be raised before the command loads or generates anything."""
    for folder in ("out", "photos", "runs"):
        (model / folder).mkdir()
    (model / "hard.json").hardlink_to(model / "target" / "config.json")
    (model / "out" / "log.csv").write_text("prompt\na cat\na dog\na cow\n", encoding="utf-8")
    (model / "drafter" / "training").mkdir()
    # `drafter` is the folder of a training that can be resumed, whatever its settings.
    (model / "drafter" / "training" / "settings.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("adt_core.lab.training.drafter._is_same", lambda *_: True)
    (model / "drafter" / "pairing.json").write_text('["a cat"]', encoding="utf-8")
    (model / "runs" / "runs.jsonl").symlink_to("../list.jsonl")
    for number in range(3):
        Image.new("RGB", (8, 8)).save(model / "photos" / f"{number}.png")
        (model / "photos" / f"{number}.txt").write_text("a cat", encoding="utf-8")
    before = contents(model)
    monkeypatch.setattr("adt_core.models.load.fill", lambda *_: pytest.fail("weights were read"))
    assert cli.main(line.split()) != 0
    message = capsys.readouterr().err
    assert words in message and len(message.splitlines()) == 1
    assert contents(model) == before


def test_results_may_be_written_next_to_a_model(model, capsys):
    """Results may also be overwritten later. Only the files of the model are protected."""
    line = GENERATE.replace("o.png", "target/o.png") + " --report target/report.json --device cpu"
    for _ in range(2):
        assert cli.main(line.split()) == 0, capsys.readouterr().err


def test_companions_of_a_model_are_protected(tmp_path):
    model = write_hugging_face(tmp_path / "models")
    found = {path.resolve() for path in checkpoint_files(model, "target")}
    weights = {path.resolve() for path in (tmp_path / "models").rglob("*") if path.suffix in (".safetensors", ".pt")}
    assert weights and weights <= found
    assert next((tmp_path / "models").rglob("flan-t5-xl/config.json")).resolve() in found
