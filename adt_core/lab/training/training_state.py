"""State of a training run, as a safetensors file.

The state is a nested structure of dicts, lists, plain values and tensors, such as the state of an optimiser. The
structure is stored as JSON, in a tensor of bytes. In it, `{"tensor": "7"}` refers to the tensor with the name "7". A
pickle would need less code, but this pack reads pickles only of published models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ...files import opened

_STRUCTURE = "structure"
_REFERENCE = "tensor"


def to_bytes(state: dict[str, Any]) -> bytes:
    """Return the content of a file with the state. JSON turns keys that are numbers into strings."""
    tensors: dict[str, Tensor] = {}

    def refer(value: object) -> dict[str, str]:
        if not isinstance(value, Tensor):
            raise TypeError(f"{type(value).__name__} can't be stored in a checkpoint")
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()  # safetensors refuses shared memory
        return {_REFERENCE: name}

    structure = json.dumps(state, default=refer).encode()
    return save({**tensors, _STRUCTURE: torch.frombuffer(bytearray(structure), dtype=torch.uint8)})


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the content of a file with the state. If the file is damaged, this function raises various exceptions."""
    with opened(path) as file:
        tensors = load(file.read())
    structure = tensors.pop(_STRUCTURE).numpy().tobytes()

    def resolve(part: dict[str, Any]) -> Any:
        return tensors[part[_REFERENCE]].to(device) if part.keys() == {_REFERENCE} else part

    return json.loads(structure, object_hook=resolve)
