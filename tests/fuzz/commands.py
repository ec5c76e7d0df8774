"""Command lines: any value for any option, and options that don't go together."""

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
from adt_core.rules.settings import Option
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

from .odd import NUMBERS, TEXTS

SLOW = {"--ray-address", "--workers", "--steps", "--minutes", "--pictures", "--held-out", "--clip", "--hps"}
"""Not drawn: they start other processes, or work on purpose."""
LEAST = {
    "generate": ["--prompt", "a cat", "--output", "out.png"],
    "benchmark": ["--count", "1", "--output", "bench", "--methods", "eagle2"],
    "inspect": ["target"],
    "train-drafter": [
        "--prompts",
        "list.txt",
        "--output",
        "taught",
        "--steps",
        "1",
        "--pictures",
        "2",
        "--held-out",
        "1",
    ],
    "check-drafter": ["--count", "1", "--drafter", "drafter"],
}
"""What each command can't do without."""
COMMANDS = ["generate"] * 6 + ["benchmark", "inspect", "train-drafter", "check-drafter"]


def commands(folder: Path) -> Callable:
    """A sentence on stderr and exit code 1 or 2, or success; never anything unexpected."""
    target = write_tiny_checkpoint(folder / "target")
    write_tiny_drafter(folder / "drafter", target)
    Image.new("RGB", (40, 30)).save(folder / "photo.jpg")
    (folder / "list.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (folder / "captions.json").write_text(json.dumps(["a cat"]), encoding="utf-8")
    files = st.sampled_from(
        ["target", "drafter", "drafter+jacobi", "photo.jpg", "list.txt", "captions.json", "out.png"]
    )
    numbers = st.integers(-3, 9).map(str) | st.floats().map(str) | NUMBERS.map(_text)
    values = files | numbers | TEXTS

    def one(data) -> None:
        name = data.draw(st.sampled_from(COMMANDS))
        words = {"--model": "target", "--drafter": "jacobi", "--device": "cpu"} if name != "inspect" else {}
        words |= dict(zip(LEAST[name][::2], LEAST[name][1::2])) if name != "inspect" else {}
        if words and not data.draw(st.integers(0, 4)):
            words.pop(data.draw(st.sampled_from(sorted(words))))
        for _ in range(data.draw(st.integers(0, 3))):
            option, setting = data.draw(st.sampled_from(_options(name)))
            usual = st.sampled_from(setting.choices) if setting.choices else values
            words[option] = None if setting.kind is bool else data.draw(usual | values)
        given = [name, *(LEAST[name] if name == "inspect" else ())]
        for option, value in words.items():
            given += (
                [option] if value is None else [f"{option}={value}"] if data.draw(st.booleans()) else [option, value]
            )
        check(given)

    return one


def _options(name: str) -> list[tuple[str, Option]]:
    groups = cli.COMMANDS[getattr(cli, name.replace("-", "_"))].values()
    settings = [(cli.option_flag(name), one) for group in groups for table in group for name, one in table().items()]
    return [pair for pair in settings if pair[0] not in (*SLOW, "--path")]


def _text(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python prints
        return "9" * 5000


def check(words: list[str]) -> None:
    """Run a command. AssertionError if it does not end as it should; AdtError with its sentence if it was refused."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as left:  # --help and --version
            code = left.code
    said = err.getvalue().split("\r")[-1].strip()
    assert code in (0, 1, 2), f"{code}: {words}"
    if code:
        assert said.startswith("error: ") and "unexpected" not in said, f"{words}: {said}"
        raise AdtError(said)
