"""Edits of a checkpoint's files, for tests of invalid checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from adt_core import load_target
from adt_core.app.inspect import inspect
from tests.raising import raises_key

Change = Callable[[dict], object]  # modifies a dictionary in place


def edit_json(file: Path, change: Change) -> None:
    """Apply a change to a JSON file."""
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def edit_config(folder: Path, change: Change) -> None:
    """Apply a change to the config.json of a checkpoint."""
    edit_json(folder / "config.json", change)


def edit_tensors(folder: Path, change: Change) -> None:
    """Apply a change to the tensors of a checkpoint that has a single file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def write_one_file(stage: Path, tokenizer: Path, file: Path, *without: str) -> Path:
    """Write a checkpoint as one file, with its configuration and tokenizer stored as tensors of bytes."""
    tensors = {name: value for part in stage.glob("*.safetensors") for name, value in load_file(part).items()}
    texts = {"config_json": stage / "config.json", "tokenizer_json": tokenizer}
    tensors |= {name: torch.tensor(list(text.read_bytes()), dtype=torch.uint8) for name, text in texts.items()}
    save_file({name: value for name, value in tensors.items() if name not in without}, file)
    return file


def check_refused(path: str | Path, key: str, /, **values: object) -> str:
    """Check that a model can't be loaded, with this error, and that `inspect` reports the same error.

    Returns:
        The sentence.
    """
    with raises_key(key, **values) as raised:
        load_target(path)
    with raises_key(key) as inspected:
        inspect(str(path))
    assert str(inspected.value) == str(raised.value)
    return str(raised.value)
