"""Tests of paths with `~`, and of paths that aren't UTF-8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from adt_core import cli
from adt_core.app.prompts import file_stems, parse_lines
from adt_core.run.images import named_folder
from tests.command import words

ROOT = Path(__file__).resolve().parents[3]
CAFE = os.fsdecode(b"caf\xe9")  # file name in Latin-1, as in old archives
SPELLED = r"caf\udce9"


def can_hold(folder):
    try:
        (folder / CAFE).mkdir()
    except (OSError, UnicodeError):
        return False
    return True


@pytest.fixture
def odd(tmp_path):
    """Return a folder whose name isn't UTF-8."""
    if not can_hold(tmp_path):
        pytest.skip("this system's names are all Unicode")
    return tmp_path / CAFE


# ---- the home folder -----------------------------------------------------------------------------------


def path_options():
    """Yield (command, option, required options) for every option with a path."""
    least = {"generate": ["--output", "o.png"], "benchmark": ["--output", "o"], "train-drafter": ["--output", "o"]}
    one = {"generate": ["--prompt", "x"], "train-drafter": ["--prompts", "x"]}
    for command, groups in cli.COMMANDS.items():
        name = command.__name__.replace("_", "-")
        settings = {key: option for tables in groups.values() for table in tables for key, option in table().items()}
        for key, option in settings.items():
            if option.kind is Path or (option.kind is str and option.metavar in ("PATH", "FILE")):
                exclusive = key in cli.ONE_OF.get(command, ())
                yield pytest.param(name, key, [*least.get(name, []), *([] if exclusive else one.get(name, []))], id=key)


@pytest.mark.parametrize("command, key, rest", list(path_options()))
def test_tilde_in_paths(monkeypatch, tmp_path, command, key, rest):
    """Shells expand `~` only at the beginning of a word. Windows doesn't expand it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr("adt_core.run.png_settings.read_values", lambda *_: {})
    given = ["~/a.png"] if key in cli.POSITIONAL else [f"{cli.option_flag(key)}=~/a.png"]
    _, options = cli.parse([command, *rest, *given])
    value = options[key][0] if isinstance(options[key], list) else options[key]
    assert os.fspath(value) == str(tmp_path / "a.png")


def test_tilde_in_other_options():
    _, options = cli.parse(["generate", "--prompt=~/a", "--output=a~b/~.png", "--drafter=jacobi", "--suffix=~"])
    assert (options["prompt"], options["suffix"], options["drafter"]) == ("~/a", "~", "jacobi")
    assert options["output"] == Path("a~b/~.png")


def test_output_in_the_home_folder(monkeypatch, tmp_path, tiny, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / "models").symlink_to(tiny)
    monkeypatch.chdir(tmp_path / "work")
    given = ["--model=~/models/target", "--drafter=~/models/drafter+jacobi", "--device=cpu", "--prompt=a house"]
    assert cli.main(["generate", *given, "--output=~/a.png", "--report=~/r.json"]) == 0, capsys.readouterr().err
    assert (tmp_path / "a.png").is_file() and (tmp_path / "r.json").is_file()
    assert not list((tmp_path / "work").iterdir())


# ---- bytes that are no UTF-8 -----------------------------------------------------------------------------


def test_names_that_are_not_utf8(odd, tiny, capsys):
    (odd / "list.csv").write_text("prompt\na house\n", encoding="utf-8")
    Image.new("RGB", (40, 40)).save(odd / "p.png")
    models = {"model": tiny / "target", "drafter": tiny / "drafter", "device": "cpu"}
    files = {name: odd / f"{name}-{CAFE}.json" for name in ("tokens", "trace", "report")}
    given = {"prompts": odd / "list.csv", "output": odd / CAFE, "continue_from": odd / "p.png"}
    assert cli.main(words("generate", **models, **files, **given)) == 0
    assert f"{SPELLED}: 8 tokens" in capsys.readouterr().out
    assert all(json.loads(file.read_text(encoding="utf-8")) for file in files.values())
    with Image.open(odd / CAFE / "000001.png") as image:
        assert json.loads(image.text["adt_tree"])["prompt"] == "a house"
    again = {"from_png": odd / CAFE / "000001.png", "output": odd / "again.png"}
    assert cli.main(words("generate", **models, **again)) == 0
    with Image.open(odd / "again.png") as one, Image.open(odd / CAFE / "000001.png") as two:
        assert one.tobytes() == two.tobytes()
    assert cli.main(words("benchmark", **models, prompts=odd / "list.csv", methods="eagle2", output=odd / "b")) == 0


def test_errors_with_such_paths(odd, tmp_path, capsys):
    for option in ("--prompts", "--continue-from", "--from-png", "--model"):
        subject = [] if option in ("--prompts", "--from-png") else ["--prompt", "a house"]
        given = [*subject, option, str(odd / "nowhere"), "--output", str(tmp_path / "a.png")]
        assert cli.main(["generate", *given]) in (1, 2)
        message = capsys.readouterr().err
        assert f"{SPELLED}/nowhere" in message and message.count("\n") == 1 and "unexpected" not in message


def test_models_in_such_folders(odd, tiny, capsys):
    for role in ("target", "drafter"):
        (odd / role).symlink_to(tiny / role)
        assert cli.main(["inspect", str(odd / role)]) == 1
        message = capsys.readouterr().err
        assert (
            f"{SPELLED}/{role}' is not UTF-8, and safetensors can't open such paths; rename the file or folder."
            in message
        )


def test_training_in_such_folders_is_rejected(odd, tiny, capsys):
    (odd / "list.txt").write_text("\n".join(f"cat {number}" for number in range(9)), encoding="utf-8")
    given = {
        "prompts": odd / "list.txt",
        "model": tiny / "target",
        "device": "cpu",
        "validation_prompts": 1,
        "training_batch_size": 1,
    }
    assert cli.main(words("train-drafter", **given, steps=1, output=odd / "taught")) == 2
    assert f"--output: '{odd.parent}/{SPELLED}/taught' is not UTF-8" in capsys.readouterr().err
    assert not (odd / "taught").exists()


def test_such_bytes_are_removed_from_names(tmp_path):
    assert named_folder(tmp_path, "key", f"{CAFE} au lait", "model") == tmp_path / "caf-au-lait-key"
    assert file_stems(parse_lines(f"a {CAFE}")) == ["1-a-caf"]


@pytest.mark.long
@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}], ids=str)
def test_a_process_in_the_c_locale(odd, tiny, locale):
    environment = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "LC_CTYPE")}
    given = {"model": tiny / "target", "drafter": tiny / "drafter", "device": "cpu", "prompt": "a house"}
    line = words("generate", **given, output=odd / "ü.png", report=odd / "r.json")
    done = subprocess.run(
        [sys.executable, "-m", "adt_core", *line], cwd=ROOT, env={**environment, **locale}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9" in done.stdout and (odd / "ü.png").is_file()
    assert json.loads((odd / "r.json").read_text(encoding="utf-8"))["images"] == 1
