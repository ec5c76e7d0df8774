"""Reading checkpoints: configuration, tensor names and shapes, tensors. Never executes code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..errors import AdtError

Check = Callable[[], None]
BUNDLED = "bundled"
_BUNDLED_FOLDER = Path(__file__).parent.parent / "bundled"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_WRAPPERS = ("model", "module", "state_dict")  # keys under which training scripts save the weights


def resolve(path: str | Path, role: str) -> Path:
    """The folder or file a user means by ``path``; ``role`` is "target" or "drafter"."""
    found = _BUNDLED_FOLDER / role if str(path) == BUNDLED else Path(path).expanduser()
    if not found.exists():
        raise AdtError(
            f"{role} {str(path)!r} does not exist; give 'bundled', a folder with config.json and weights, or a weights file."
        )
    return found


def read_json(file: Path) -> dict:
    """The JSON object in a file. AdtError if it is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AdtError(f"{file} is not readable JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise AdtError(f"{file} is not a JSON object; download it again.")
    return value


class _SafeFile:
    """A safetensors file. It is opened anew for every tensor, so that no more of it than that is ever mapped into memory."""

    def __init__(self, file: Path):
        self._file = file
        with self._open() as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            self.headers = {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}

    def get(self, name: str) -> Tensor:
        with self._open() as opened:
            return opened.get_tensor(name)

    def _open(self) -> safe_open:
        try:
            return safe_open(self._file, "pt")
        except (SafetensorError, OSError) as error:
            raise AdtError(f"{self._file} is not a complete safetensors file ({error}); download it again.") from error


class _Pickle:
    """A file written by ``torch.save``, of which nothing but tensors is read."""

    def __init__(self, file: Path):
        try:
            loaded = _unpickle(file)
        except Exception as error:  # torch raises many types; none of them may run what the file asks for
            raise AdtError(
                f"{file} holds more than tensors or is damaged, and was refused; use a safetensors version of it."
            ) from error
        for key in _WRAPPERS:
            loaded = loaded[key] if isinstance(loaded, dict) and isinstance(loaded.get(key), dict) else loaded
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise AdtError(f"{file} is not a flat dictionary of tensors; use a safetensors version of it.")
        self._tensors = loaded
        self.headers = {
            name: (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in loaded.items()
        }

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


def _unpickle(file: Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):  # files of before torch 1.6 can only be read whole
            raise
        return torch.load(file, map_location="cpu", weights_only=True)


class Checkpoint:
    """A folder with ``config.json`` and ``*.safetensors`` (or ``pytorch_model*.bin``), or a single file of weights; read tensor by tensor.

    ``config`` is empty where there is no ``config.json``. AdtError if files are missing or damaged.
    """

    def __init__(self, path: Path):
        self.path, self.folder = path, path if path.is_dir() else path.parent
        self.files: list[Path] = []
        self._where: dict[str, tuple[_SafeFile | _Pickle, str]] = {}
        self.config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
        files = (
            [path] if path.is_file() else sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
        )
        self._missing_shards(files)
        if not files:
            others = [file.name for file in sorted(path.iterdir()) if file.suffix in PICKLES]
            remedy = f"give one of its files: {', '.join(others)}" if others else "download the weights into it"
            raise AdtError(f"{path} holds no *.safetensors and no pytorch_model.bin; {remedy}.")
        for file in files:
            self.add(file)

    def add(self, file: Path, prefix: str = "", only: tuple[str, ...] = ("",)) -> None:
        """Take the tensors of one more file whose names begin as one of ``only``, as if there were ``prefix`` before them."""
        store = _Pickle(file) if file.suffix in PICKLES else _SafeFile(file)
        self.files.append(file)
        self._where |= {prefix + name: (store, name) for name in store.headers if name.startswith(only)}

    def beside(self, patterns: tuple[str, ...]) -> Path | None:
        """The first file or folder that one of ``patterns`` finds in the checkpoint's folder, then in the one above."""
        found = (
            match
            for folder in (self.folder, self.folder.parent)
            for pattern in patterns
            for match in sorted(folder.glob(pattern))
        )
        return next(found, None)

    @property
    def names(self) -> list[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the file's header alone."""
        return self._find(name)[0]

    def dtype(self, name: str) -> str:
        """Stored dtype of a tensor, such as "F16" or "BF16"."""
        return self._find(name)[1]

    def get(self, name: str) -> Tensor:
        """One tensor, on the CPU and as stored."""
        self._find(name)
        store, own_name = self._where[name]
        return store.get(own_name)

    def _find(self, name: str) -> tuple[tuple[int, ...], str]:
        if name not in self._where:
            raise AdtError(f"{self.path} lacks the tensor {name!r}; it is incomplete or of another architecture.")
        store, own_name = self._where[name]
        return store.headers[own_name]

    def _missing_shards(self, files: list[Path]) -> None:
        pickled = files and files[0].suffix in PICKLES
        index = self.folder / ("pytorch_model.bin.index.json" if pickled else "model.safetensors.index.json")
        if self.path.is_dir() and index.is_file():
            wanted = set(read_json(index).get("weight_map", {}).values())
            missing = sorted(wanted - {file.name for file in files})
            if missing:
                raise AdtError(
                    f"{self.path} lacks {', '.join(missing)}, named in its index; download the missing files."
                )


@dataclass(frozen=True)
class Entry:
    """How one parameter is filled: the tensors ``names`` of the checkpoint, the ``shapes`` that they must have, and what makes the parameter of them.

    Without ``make`` they are joined along dim 0, and transposed if ``transpose``. put: how the value gets into the parameter, if it isn't just copied.
    """

    parameter: Tensor
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    transpose: bool = False
    make: Callable[[list[Tensor]], Tensor] | None = None
    put: Callable[[Tensor], object] | None = None

    def value(self, tensors: list[Tensor]) -> Tensor:
        """The parameter's value, from the tensors in the order of ``names``."""
        if self.make is not None:
            return self.make(tensors)
        joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return joined.T if self.transpose else joined


def same(parameter: Tensor, name: str, transpose: bool = False, put: Callable[[Tensor], object] | None = None) -> Entry:
    """A tensor that is taken as it is, or transposed."""
    return Entry(parameter, (name,), (tuple(parameter.T.shape if transpose else parameter.shape),), transpose, put=put)


def whole(module: nn.Module, prefix: str) -> list[Entry]:
    """Every parameter of ``module``, as it is, under its own name behind ``prefix``."""
    return [same(parameter, prefix + name) for name, parameter in module.named_parameters()]


def missing_tensors(entries: list[Entry], checkpoint: Checkpoint) -> list[str]:
    """Names that the entries need and the checkpoint lacks."""
    there = set(checkpoint.names)
    return [name for entry in entries for name in entry.names if name not in there]


def check_entries(
    entries: list[Entry], checkpoint: Checkpoint, remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    """AdtError, naming the tensor and both shapes, unless all that is wanted is there and of its shape. Reads headers only.

    remedies: what to do when tensors are missing whose names begin so.
    """
    missing = missing_tensors(entries, checkpoint)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        remedy = next(
            (remedy for prefix, remedy in remedies.items() if missing[0].startswith(prefix)),
            "it is incomplete or of another architecture",
        )
        raise AdtError(f"{checkpoint.path} lacks the tensor {missing[0]!r}{more}; {remedy}.")
    for entry in entries:
        for name, shape in zip(entry.names, entry.shapes):
            if checkpoint.shape(name) != shape:
                raise AdtError(
                    f"{checkpoint.path}: {name} has shape {checkpoint.shape(name)}, but {shape} was expected; the file belongs to another model."
                )


@torch.no_grad()
def fill(entries: list[Entry], checkpoint: Checkpoint, check: Check | None = None) -> None:
    """Read every parameter, one at a time, straight to where it is and into its dtype. ``check`` is called before each."""
    for entry in entries:
        if check is not None:
            check()
        value = entry.value([checkpoint.get(name) for name in entry.names])
        if entry.put is not None:
            entry.put(value)
        else:
            entry.parameter.copy_(value)
