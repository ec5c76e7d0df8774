"""Reading checkpoint folders: configuration, tensor names and shapes, tensors. Never executes code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..errors import AdtError

Check = Callable[[], None]
BUNDLED = "bundled"
_BUNDLED_FOLDER = Path(__file__).parent.parent / "bundled"


def resolve(path: str | Path, role: str) -> Path:
    """The folder a user means by ``path``; ``role`` is "target" or "drafter"."""
    folder = _BUNDLED_FOLDER / role if str(path) == BUNDLED else Path(path).expanduser()
    if not folder.exists():
        raise AdtError(f"{role} {str(path)!r} does not exist; give 'bundled' or a folder with config.json and weights.")
    if not (folder / "config.json").is_file():
        raise AdtError(f"{role} {str(path)!r} has no config.json; give the folder of a Hugging Face style checkpoint.")
    return folder


class Checkpoint:
    """A folder with ``config.json`` and ``*.safetensors`` (or ``pytorch_model.bin``), read tensor by tensor."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise AdtError(f"{folder / 'config.json'} is not readable JSON ({error}); download it again.") from error
        if not isinstance(self.config, dict):
            raise AdtError(f"{folder / 'config.json'} is not a JSON object; download it again.")
        self.files = sorted(folder.glob("*.safetensors"))
        pickle = folder / "pytorch_model.bin"
        self._pickled: dict[str, Tensor] | None = None
        if not self.files and pickle.is_file():
            self.files, self._pickled = [pickle], self._load_pickle(pickle)
        if not self.files:
            raise AdtError(f"{folder} holds no *.safetensors and no pytorch_model.bin; download the weights into it.")
        self._file_of: dict[str, Path] = {}
        self._missing_shards()
        for file in self.files:
            self._file_of.update(dict.fromkeys(self._names(file), file))

    @property
    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the file's header alone."""
        if self._pickled is not None:
            return tuple(self._pickled[name].shape)
        with self._open(self._file_of[name]) as file:
            return tuple(file.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Stored dtype of a tensor, such as "F16" or "BF16"."""
        if self._pickled is not None:
            return str(self._pickled[name].dtype).removeprefix("torch.")
        with self._open(self._file_of[name]) as file:
            return file.get_slice(name).get_dtype()

    def get(self, name: str) -> Tensor:
        """One tensor, on the CPU and as stored."""
        if name not in self._file_of:
            raise AdtError(f"{self.folder} lacks the tensor {name!r}; it is incomplete or of another architecture.")
        if self._pickled is not None:
            return self._pickled[name]
        with self._open(self._file_of[name]) as file:
            return file.get_tensor(name)

    def _missing_shards(self) -> None:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(wanted - {file.name for file in self.files})
            if missing:
                raise AdtError(f"{self.folder} lacks {', '.join(missing)}, named in its index; download the missing files.")

    def _names(self, file: Path) -> Iterable[str]:
        if self._pickled is not None:
            return self._pickled
        with self._open(file) as opened:
            return opened.keys()

    @staticmethod
    def _open(file: Path) -> safe_open:
        try:
            return safe_open(file, "pt")
        except (SafetensorError, OSError) as error:
            raise AdtError(f"{file} is not a complete safetensors file ({error}); download it again.") from error

    @staticmethod
    def _load_pickle(file: Path) -> dict[str, Tensor]:
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises many types; none of them may run what the file asks for
            raise AdtError(f"{file} holds more than tensors or is damaged, and was refused; use a safetensors version of it.") from error
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise AdtError(f"{file} is not a flat dictionary of tensors; use a safetensors version of it.")
        return loaded


def assign(parameter: nn.Parameter, tensors: list[Tensor], name: str, source: Path, transpose: bool = False) -> None:
    """Copy the concatenation (along dim 0) of ``tensors``, transposed on request, into ``parameter``, checking the shape."""
    value = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    value = value.T if transpose else value
    if value.shape != parameter.shape:
        raise AdtError(f"{source}: {name} has shape {tuple(value.shape)}, but {tuple(parameter.shape)} was expected; "
                       "the file belongs to another model.")
    parameter.data.copy_(value)
