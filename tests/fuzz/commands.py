"""Fuzzer for command lines. It tries any value of any option, and options that exclude each other."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from PIL import Image

from adt_core import cli
from adt_core.errors import AdtError
from adt_core.settings import Option
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

from .strategies import NUMBERS, TEXTS

SLOW = {"ray-address", "workers", "steps", "minutes", "training-images", "validation-prompts", "clip", "hps"}
"""Options that are left out, because they start processes or need more work."""
REQUIRED = {
    "generate": ["--prompt", "a cat", "--output", "out.png"],
    "benchmark": ["--count", "1", "--output", "bench", "--methods", "eagle2"],
    "inspect": ["target"],
    "train-drafter": [
        *("--prompts", "list.txt", "--output", "taught", "--steps", "1"),
        *("--training-images", "2", "--validation-prompts", "1"),
    ],
    "check-drafter": ["--count", "1", "--drafter", "drafter"],
}
"""Command -> its required arguments."""
COMMANDS = ["generate"] * 6 + ["benchmark", "inspect", "train-drafter", "check-drafter"]


def commands(folder: Path) -> Callable:
    """Return the test that runs commands with random arguments.

    Each command must either succeed, or print one sentence to stderr and return 1 or 2.
    """
    target = write_tiny_checkpoint(folder / "target")
    write_tiny_drafter(folder / "drafter", target)
    Image.new("RGB", (40, 30)).save(folder / "photo.jpg")
    (folder / "list.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (folder / "captions.json").write_text(json.dumps(["a cat"]), encoding="utf-8")
    names = ["target", "drafter", "drafter+jacobi", "photo.jpg", "list.txt", "captions.json", "out.png"]
    numbers = st.integers(-3, 9).map(str) | st.floats().map(str) | NUMBERS.map(_text)
    values = st.sampled_from(names) | numbers | TEXTS

    def try_input(data) -> None:
        name = data.draw(st.sampled_from(COMMANDS))
        words = {"--model": "target", "--drafter": "jacobi", "--device": "cpu"} if name != "inspect" else {}
        words |= dict(zip(REQUIRED[name][::2], REQUIRED[name][1::2])) if name != "inspect" else {}
        if words and not data.draw(st.integers(0, 4)):
            words.pop(data.draw(st.sampled_from(sorted(words))))
        for _ in range(data.draw(st.integers(0, 3))):
            option, setting = data.draw(st.sampled_from(_options(name)))
            valid = st.sampled_from(setting.choices) if setting.choices else values
            words[option] = None if setting.kind is bool else data.draw(valid | values)
        given = [name, *(REQUIRED[name] if name == "inspect" else ())]
        for option, value in words.items():
            if value is None:
                given += [option]
            else:
                given += [f"{option}={value}"] if data.draw(st.booleans()) else [option, value]
        check(given)

    return try_input


def _options(name: str) -> list[tuple[str, Option]]:
    groups = cli.COMMANDS[getattr(cli, name.replace("-", "_"))].values()
    settings = [(cli.option_flag(name), one) for group in groups for table in group for name, one in table().items()]
    return [pair for pair in settings if pair[0].removeprefix("--") not in SLOW | {"path"}]


def _text(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # the number has more digits than Python converts
        return "9" * 5000


def check(words: list[str]) -> None:
    """Run a command.

    Raises:
        AdtError: If the command was refused, with its message.
        AssertionError: If the command ended in another way.
    """
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as exit_:  # raised by --help and --version
            code = exit_.code
    message = err.getvalue().split("\r")[-1].strip()
    assert code in (0, 1, 2), f"{code}: {words}"
    if code:
        assert message.startswith("error: ") and "unexpected" not in message, f"{words}: {message}"
        raise AdtError(message)
