"""Tests of untrusted files. Each must raise an error, and none may execute code, block or exhaust memory."""

import os
from pathlib import Path

import pytest
import torch

from adt_core import cli
from adt_core.app.prompts import read_all
from adt_core.files import write
from adt_core.models.load import load_target
from adt_core.models.reading import checkpoint as files
from adt_core.models.reading.checkpoint import Checkpoint
from adt_core.models.reading.fields import read_json
from adt_core.models.reading.layout import decoder_config
from adt_core.run.images import to_png
from tests.layouts.edits import edit_config
from tests.layouts.llamagen import T5, write_hugging_face
from tests.raising import raises_key

DEEP = "[" * 100_000
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture
def llamagen(tmp_path):
    """Return a checkpoint of LlamaGen, and the folder of its text encoder."""
    folder = write_hugging_face(tmp_path)
    return folder, next(tmp_path.rglob("flan-t5-xl"))


def test_t5_configurations_load_no_code(llamagen):
    """With these fields, transformers would download a kernel and run its code."""
    folder, encoder = llamagen
    hostile = {"attn_implementation": "owner/kernel", "_attn_implementation": "owner/kernel", "auto_map": {"a": "b"}}
    edit_config(encoder, lambda config: config.update(hostile))
    made = load_target(folder).text_encoder.t5.config
    assert made._attn_implementation == "eager" and not hasattr(made, "auto_map")
    assert {name: getattr(made, name) for name in T5 if name != "feed_forward_proj"}.items() <= T5.items()


@pytest.mark.parametrize(
    "field, value",
    [("feed_forward_proj", "gated-evil"), ("layer_norm_epsilon", "1e-6"), ("num_layers", 10**6), ("d_model", -1)],
)
def test_invalid_t5_configurations(llamagen, field, value):
    folder, encoder = llamagen
    edit_config(encoder, lambda config: config.update({field: value}))
    with raises_key("config_json.wrong_value", problem=field):
        load_target(folder)


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000], ids=["lists", "objects"])
def test_deeply_nested_json(tmp_path, text):
    bad = "prompts.bad_format"
    for name, make, key in (
        ("config.json", read_json, "json.unreadable"),
        ("a.json", read_all, bad),
        ("a.jsonl", read_all, bad),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with raises_key(key, reason="nested too deeply"):
            make(tmp_path / name)


def test_files_that_are_too_large(tmp_path):
    unreadable = (("config.json", read_json, 65, "json.unreadable"), ("a.txt", read_all, 257, "prompts.unreadable"))
    for name, make, size, key in unreadable:
        with (tmp_path / name).open("wb") as file:
            file.truncate(size * 2**20)  # the file is sparse, so it needs no disk space
        with raises_key(key, reason=f"it has {size} MiB"):
            make(tmp_path / name)


@needs_pipes
def test_pipes_are_rejected(target):
    (target / "model.safetensors").unlink()
    os.mkfifo(target / "model.safetensors")
    with raises_key("weights.not_a_file"):
        load_target(target)


@pytest.mark.parametrize(
    "version, refused", [("2.9.1+cu130", True), ("2.6.0", True), ("2.10.0", False), ("2.13.0+cpu", False)]
)
def test_pickles_with_vulnerable_versions_of_torch(tmp_path, monkeypatch, safe_pickles, version, refused):
    monkeypatch.setattr(files, "SAFE_PICKLES", safe_pickles)
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    monkeypatch.setattr(torch, "__version__", version)
    if refused:
        with raises_key("pickled.unsafe", version=version, needed="2.10"):
            Checkpoint(tmp_path / "weights.pt")
    else:
        assert Checkpoint(tmp_path / "weights.pt")["a"].shape == (1,)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_size"])
@pytest.mark.parametrize("value", [10**7, 10**400, -1, 0.5, "many", [1], {"a": 1}, True])
def test_excessive_sizes_are_rejected_before_allocation(name, value):
    usual = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    with raises_key("config_json.wrong_value", problem=name) as raised:
        decoder_config(usual | {name: value}, "folder")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "given, words",
    [
        ({"--tokens": "o.png"}, "--tokens: 'o.png' is the file of --output"),
        ({"--trace": "./a/../t.json", "--report": "t.json"}, "--report: 't.json' is the file of --trace"),
        ({"--prompts": "p.txt", "--output": "o", "--report": "p.txt"}, "--report: 'p.txt' is the file of --prompts"),
        ({"--prompts": "p.txt", "--output": "o", "--report": "link.json"}, "'link.json' is the file of --prompts"),
        ({"--prompts": "p.txt", "--output": "o", "--tokens": "o/000002.png"}, "is the file of --output"),
        ({"--report": "/dev/null"}, "is a device or a pipe"),
        ({"--report": "folder"}, "is a folder"),
        ({"--output": "x" * 252 + ".png"}, "is too long"),
        ({"--report": "\u00e9" * 128}, "is too long"),
        ({"--trace": "CON.json"}, "is a device or a pipe"),
    ],
    ids=range(10),
)
def test_outputs_do_not_replace_inputs(tmp_path, monkeypatch, capsys, given, words):
    """The error must be raised before a model is loaded. This test has no model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (tmp_path / "link.json").symlink_to("p.txt")
    for name in ("folder", "a"):
        (tmp_path / name).mkdir()
    usual = {"--output": "o.png", "--model": "nowhere"} | ({} if "--prompts" in given else {"--prompt": "a cat"})
    code = cli.main(["generate", *(word for pair in (usual | given).items() for word in pair)])
    message = capsys.readouterr().err
    assert code != 0 and words in message and len(message.splitlines()) == 1
    assert (tmp_path / "p.txt").read_text(encoding="utf-8") == "a cat\na dog\n" and not (tmp_path / "o.png").exists()


@pytest.fixture
def write_png(tmp_path, monkeypatch):
    """Return a function that writes a.png with usual settings, except one, into the working directory."""
    monkeypatch.chdir(tmp_path)
    settings = {"prompt": "a cat", "model": "bundled", "drafter": "jacobi"}
    return lambda name, value: Path("a.png").write_bytes(to_png(torch.zeros(3, 8, 8), settings | {name: value}))


@pytest.mark.parametrize("name", ["model", "drafter"])
def test_paths_in_a_png_are_not_opened(write_png, monkeypatch, capsys, name):
    write_png(name, "//server/share/model")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: pytest.fail(f"{path} was looked at"))
        assert cli.main(["generate", "--from-png", "a.png", "--output", "again.png"]) != 0
    message = capsys.readouterr().err
    assert f"names the {name} '//server/share/model'" in message and f"add --{name}" in message
    _, options = cli.parse(["generate", "--from-png", "a.png", "--output", "again.png", f"--{name}", "mine"])
    assert options[name] == "mine"


@pytest.mark.parametrize(
    "name, value",
    [("seed", "1"), ("seed", 1.5), ("temperature", float("nan")), ("dtype", "int3"), ("size", [8]), ("prompt", None)]
    + [("kept", [-2]), ("image_index", -1), ("method", ["auto"]), ("depth", True), ("top_k", 10**400), ("prompt", "")],
)
def test_invalid_settings_in_a_png(write_png, capsys, name, value):
    write_png(name, value)
    assert cli.main(["generate", "--from-png", "a.png", "--output", "again.png"]) != 0
    message = capsys.readouterr().err
    assert name in message and len(message) < 300 and len(message.splitlines()) == 1


def test_links_of_users_are_followed_and_kept(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere" / "report.json")
    for content in (b"one", b"two"):
        write(tmp_path / "link.json", content)
        assert (tmp_path / "link.json").is_symlink()
        assert (tmp_path / "elsewhere" / "report.json").read_bytes() == content
    write(tmp_path / ("x" * 255), b"three")
    assert not list(tmp_path.rglob("*.part"))
