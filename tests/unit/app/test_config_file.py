"""Tests of `--config`: options of a file, which options on the command line override."""

import json
import sys
from pathlib import Path

import pytest

from adt_core import cli
from tests.command import words

VALUES = {"prompt": "a cat", "output": "a.png", "guidance-scale": 2.5, "size": [768, 512], "top_k": 20}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return a function that writes a file. Work in its folder."""
    monkeypatch.chdir(tmp_path)

    def write(values, name="run.json") -> str:
        text = values if isinstance(values, str) else json.dumps(values)
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def parse(*argv):
    command, options = cli.parse(argv)
    return {name: value for name, value in options.items() if value not in (None, False)}


@pytest.mark.parametrize("place", ["before", "after"])
def test_options_of_the_file_are_those_of_the_command_line(config, place):
    file = config({**VALUES, "compare": True, "overwrite": False, "suffix": None})
    given = [f"--config={file}", "--seed=3"]
    found = parse("generate", *(given if place == "before" else given[::-1]))
    expected = words("generate", prompt="a cat", output="a.png", guidance_scale=2.5, size="768x512", top_k=20, seed=3)
    assert found == parse(*expected, "--compare")


def test_options_on_the_command_line_win(config):
    found = parse("generate", "--config", config(VALUES), "--top-k", "5", "--guidance-scale", "1")
    assert (found["top_k"], found["guidance_scale"], found["prompt"]) == (5, 1.0, "a cat")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib")
def test_toml(config):
    text = '# a run\nprompt = "a cat"\noutput = "a.png"\nsource = ["1.png", "2.png"]\n'
    found = parse("generate", "--config", config(text, "run.toml"))
    assert found["source"] == [Path("1.png"), Path("2.png")] and found["prompt"] == "a cat"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({**VALUES, "stepz": 3}, "--config: 'run.json' has 'stepz', which is no option of generate; remove it."),
        ({**VALUES, "minutes": 3}, "has 'minutes', which is no option of generate"),
        ({**VALUES, "top_k": [1, 2]}, "has [1, 2] as the value of --top-k; write a text or a number."),
        ({**VALUES, "top_k": {}}, "has {} as the value of --top-k"),
        ({**VALUES, "prompt": True}, "has True as the value of --prompt"),
        ({**VALUES, "top_k": -1}, "top-k is -1"),
        ([1], "is no object with options by name"),
        ("{", "is not valid JSON or TOML"),
        (None, "can't be read"),
    ],
)
def test_errors_name_the_file_and_the_entry(config, capsys, values, sentence):
    file = "nowhere.json" if values is None else config(values)
    assert cli.main(["generate", "--config", file, "--device", "cpu"]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == [file][values is None :]
