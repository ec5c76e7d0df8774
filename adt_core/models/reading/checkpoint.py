"""Reading checkpoints: configuration, names, shapes and values of tensors. Never executes code."""

from __future__ import annotations

import math
import os
import re
from argparse import Namespace
from collections.abc import Callable, KeysView, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from ...errors import AdtError, Check
from ...files import LARGEST_JSON, check_utf8, read_text
from ...rules.settings import BUNDLED
from . import unsound
from .json_files import json_object, read_json
from .stored import Stored, may_overflow, numbers, plain_names, refuse_overflow, with_scales
from .unsound import PICKLES
from .weight_files import weight_files

_BUNDLED_FOLDER = Path(__file__).parents[2] / BUNDLED
CONFIG, TOKENIZER = "config_json", "tokenizer_json"
"""Tensors of bytes that are the ``config.json`` and the ``tokenizer.json`` of a model in one file."""
STAGE = "vision_language_encoder"
"""The folder that is the first of two stages, in a model in the layout of diffusers (GLM-Image)."""
SAFE_PICKLES = "2.10"
"""The first torch in which no way is known around ``weights_only``."""
_REAL = re.compile(r"b?f(loat)?(16|32|64)|f(loat)?8_e[45]m\w+", re.IGNORECASE)
"""Kinds of numbers in which weights are stored as they are, as safetensors and torch call them. Others are scales, or
are of no use without them."""
MOST_MAPPED = 2**24
"""Bytes of a file that are in memory, beside the parameters, before it is opened anew."""
_UNPICKLING = Lock()
"""Held while a pickle is read: what torch allows in one holds for all threads."""
_INCOMPLETE = "download it again, or choose a model with a supported architecture"
_ANOTHERS = "the file belongs to another model, choose the matching file"
"""Remedies for tensors that are missing or have another shape."""
_WRAPPERS = ("model", "module", "state_dict")  # keys under which training scripts save the weights


def resolve(path: str | Path, role: str) -> Path:
    """The folder or file a user means by ``path``; ``role`` is "target" or "drafter"."""
    place = _BUNDLED_FOLDER / role if str(path) == BUNDLED else Path(os.path.expanduser(path))
    if not place.exists():
        unsound.refuse_dangling(place)
        remedy = "give 'bundled', a folder with config.json and weights, or a weights file"
        bare = str(path).strip("\"'")
        if bare and os.path.exists(os.path.expanduser(bare)):
            remedy = "remove the quotation marks"
        raise AdtError(f"{role} {str(path)!r} does not exist; {remedy}.")
    check_utf8(place, f"{role} {str(path)!r}")
    folder = _whole(place)
    if folder != place and place.suffix in (".safetensors", *PICKLES) and place not in weight_files(folder):
        problem = f"is not one of the weights files of the model in {folder}"
        raise AdtError(f"{role} {str(path)!r} {problem}; move it to another folder, with its config.json.")
    place = _newest_snapshot(folder) if (folder / "snapshots").is_dir() else folder
    return place / STAGE if _is_there(place / STAGE / "config.json") else place


def _is_there(file: Path) -> bool:
    """Return whether a file is there, or a link to a missing one, for which the reader raises an error."""
    return file.is_file() or file.is_symlink()


def _whole(path: Path) -> Path:
    """The folder of a whole checkpoint if the path is one of its files, such as model.safetensors; else the path.

    The folder ``models--...`` is the whole of its ``snapshots``.
    """
    if path.name == "snapshots" and path.parent.name.startswith("models--"):
        return path.parent
    is_part = path.name == "config.json" or path.name.startswith(("model", "pytorch_model"))
    return path.parent if is_part and path.is_file() and (path.parent / "config.json").is_file() else path


def _newest_snapshot(cache: Path) -> Path:
    """The checkpoint in a ``models--...`` folder of Hugging Face's cache: what ``refs/main`` names, else the newest."""
    folders = filter(Path.is_dir, (cache / "snapshots").iterdir())
    snapshots = sorted(folders, key=lambda folder: folder.stat().st_mtime)
    if not snapshots:
        raise AdtError(f"{cache}, in the Hugging Face cache, has no finished download; download the model again.")
    main = cache / "refs" / "main"
    named = read_text(main, 1, errors="replace").strip() if main.is_file() else ""
    return next((folder for folder in snapshots if folder.name == named), snapshots[-1])


def name_of(path: Path) -> str:
    """What people call a checkpoint: the name of its folder or file, or of its repository in Hugging Face's cache."""
    name = _outer(path).name
    return name.rpartition("--")[2] if name.startswith("models--") else name


def home_of(path: Path) -> Path:
    """The folder that a checkpoint lies in, among others."""
    return _outer(path).parent


def _outer(path: Path) -> Path:
    """The folder ``models--...`` of a checkpoint in Hugging Face's cache; of another one its own folder or file."""
    path = _whole(path)
    path = path.parent if path.name == STAGE else path
    return path.parents[1] if path.parent.name == "snapshots" else path


class _Weights:
    """A safetensors file, to read tensors of. It is opened anew when much of it is in memory.

    To open it for each tensor would take a minute where its header is made to be long.
    """

    def __init__(self, file: Path):
        self.file, self._taken = file, 0
        self._opened: safe_open | None = None

    def read(self, name: str) -> Tensor:
        if self._opened is None or self._taken > MOST_MAPPED:
            self._opened, self._taken = safe_open(self.file, "pt"), 0
        tensor = self._opened.get_tensor(name)
        self._taken += tensor.nbytes
        return tensor


def _read_safetensors(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file. Only its header is read."""
    read = _Weights(file).read
    try:
        with safe_open(file, "pt") as opened:
            headers = {name: opened.get_slice(name) for name in opened.keys()}
            return {
                name: Stored(tuple(header.get_shape()), header.get_dtype(), partial(read, name), file, name)
                for name, header in headers.items()
            }
    except (SafetensorError, OSError) as error:
        raise AdtError(f"{file} is not a complete safetensors file ({error}); download it again.") from error


def _unpickled(file: Path) -> Any:
    """Return what ``torch.load`` makes of a file without running code from it.

    Training checkpoints, such as LlamaGen's, also hold the arguments of the command line: a Namespace, whose
    attributes are set and which calls nothing. It is allowed within this call only.
    """
    with _UNPICKLING, ExitStack() as stack:
        if Namespace not in torch.serialization.get_safe_globals():
            stack.enter_context(torch.serialization.safe_globals([Namespace]))
        # files of before torch 1.6 are no zip files, and can't be mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))


def _read_pickle(file: Path) -> dict[str, Stored]:
    """The tensors of a file written by ``torch.save``. AdtError if it holds anything else, or may do harm."""
    if file.suffix == ".safetensors":  # torch.load chooses its reader by the name
        name = "pytorch_model.bin" if file.stem == "model" else f"{file.stem}.pt"
        raise AdtError(f"{file} is a pickle, not a safetensors file; rename it to {name}, or download the file again.")
    if TorchVersion(torch.__version__) < SAFE_PICKLES:
        raise AdtError(
            f"{file} is a pickle, which can run code when torch {torch.__version__} loads it (CVE-2025-32434, "
            f"CVE-2026-24747); update torch to {SAFE_PICKLES} or newer, or use a safetensors file."
        )
    try:
        loaded = _unpickled(file)
    except Exception as error:  # torch raises many types
        problem = "is a pickle that is damaged or contains more than tensors, so it was not loaded"
        raise AdtError(f"{file} {problem}; use a safetensors file, or save only the tensors.") from error
    for key in _WRAPPERS:
        loaded = loaded[key] if isinstance(loaded, dict) and isinstance(loaded.get(key), dict) else loaded
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(map(_is_dense, loaded.values())):
        raise AdtError(f"{file} is not a flat dictionary of dense tensors; use a safetensors file.")
    return {
        name: Stored(tuple(value.shape), str(value.dtype).removeprefix("torch."), value.detach, file, name)
        for name, value in loaded.items()
    }


def _is_dense(value: object) -> bool:
    """Return whether a value of a pickle is a tensor that has numbers, one for each place."""
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


class NoWeights(AdtError):
    """A folder holds no files of weights that can be read."""


class Checkpoint:
    """A folder with ``config.json`` and the files of :func:`weight_files`, or one file of weights.

    ``config`` is {} if there is no ``config.json``, in the folder or in the file itself. AdtError if files are missing
    or damaged.
    """

    def __init__(self, path: Path):
        self.path, self.folder = path, path if path.is_dir() else path.parent
        self.files: list[Path] = []
        self._tensors: dict[str, Stored] = {}
        self.config = read_json(path / "config.json") if _is_there(path / "config.json") else {}
        unsound.refuse_quantised(path, self.config, ())
        files = weight_files(path) if path.is_dir() else [path]
        if not files:
            others = [file.name for file in sorted(path.iterdir()) if file.suffix in PICKLES]
            remedy = f"give one of its files: {', '.join(others)}" if others else "download the weights into it"
            raise NoWeights(f"{path} contains no *.safetensors and no pytorch_model.bin; {remedy}.")
        for file in files:
            self.add(file, replaces=False)
        self.config = self.config or self.embedded(CONFIG)

    def embedded(self, name: str) -> dict:
        """The JSON object that a tensor of bytes is; {} if there is none. AdtError if it is something else."""
        if name not in self.names:
            return {}
        stored = self[name]
        if stored.dtype not in ("U8", "uint8") or math.prod(stored.shape) > LARGEST_JSON * 2**20:
            raise AdtError(
                f"{self.path}: the tensor {name} is not a JSON object stored as bytes; download the file again."
            )
        return json_object(lambda: stored.read().numpy().tobytes(), f"{self.path}: {name}")

    def add(self, file: Path, prefix: str = "", only: tuple[str, ...] = ("",), replaces: bool = True) -> None:
        """Add the tensors of another file.

        Args:
            file: The file of weights.
            prefix: What their names get in front.
            only: How the names of the tensors to add begin.
            replaces: Whether they may stand for tensors of the same name in other files.
        Raises:
            AdtError: If the file can't be read, or has a tensor of another file that it may not replace.
        """
        unsound.refuse_dangling(file)
        if not file.is_file():
            raise AdtError(f"{file} is not a regular file; replace it with the weights file.")
        unsound.refuse_damaged(file)
        read = _read_pickle if unsound.is_pickle(file) else _read_safetensors
        stored = with_scales(plain_names(read(file)))
        unsound.refuse_quantised(file, {}, stored)
        added = {prefix + name: tensor for name, tensor in stored.items() if name.startswith(only)}
        twice = None if replaces else min(added.keys() & self.names, default=None)
        if twice is not None:
            problem = f"both contain the tensor {twice!r}"
            raise AdtError(f"{self[twice].file} and {file} {problem}; keep only the files of one model in the folder.")
        self.files.append(file)
        self._tensors |= added

    def beside(self, patterns: tuple[str, ...]) -> Path | None:
        """A file or folder with a name of one of ``patterns``; None if there is none.

        It is looked for in the checkpoint's folder, then in the folder above, then in ``home``. A link whose target is
        missing is the last choice: reading it raises the error.
        """
        folders = dict.fromkeys((self.folder, self.folder.parent, self.home))
        places = [(folder, pattern) for folder in folders for pattern in patterns]
        matches = (match for folder, pattern in places for match in sorted(folder.glob(pattern)))
        links = (folder / pattern for folder, pattern in places if unsound.dangling_link(folder / pattern))
        return next(matches, None) or next(links, None)

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def home(self) -> Path:
        return home_of(self.path)

    @property
    def names(self) -> KeysView[str]:
        return self._tensors.keys()

    def __getitem__(self, name: str) -> Stored:
        """A tensor, not read yet. AdtError if it is missing."""
        if name not in self._tensors:
            raise AdtError(f"{self.path} lacks the tensor {name!r}; {_INCOMPLETE}.")
        return self._tensors[name]

    def sizes(self, name: str, least: int = 1) -> tuple[int, ...]:
        """A tensor's shape. AdtError if it is missing, or has fewer dimensions than ``least``."""
        shape = self[name].shape
        if len(shape) < least:
            raise AdtError(f"{self.path}: {name} has shape {shape}; {_ANOTHERS}.")
        return shape

    def count(self, name: str) -> int:
        """How many tensors of a numbered name there are; "{}" stands for the number."""
        return next(number for number in count() if name.format(number) not in self.names)


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)  # a large tensor is not copied


@dataclass(frozen=True)
class Entry:
    """Where a parameter comes from: tensors of the checkpoint by ``names``, which must have these ``shapes``.

    make: the parameter's value from the tensors, by default joined along dim 0. put: stores it; by default, a copy.
    """

    parameter: Tensor
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    make: Callable[[list[Tensor]], Tensor] = _joined
    put: Callable[[Tensor], object] | None = None

    def renamed(self, changes: Mapping[str, str]) -> Entry:
        """The same from tensors of other names: every key of ``changes`` is replaced by its value, in their order."""
        names = self.names
        for old, new in changes.items():
            names = tuple(name.replace(old, new) for name in names)
        return replace(self, names=names)


def transposed(tensors: list[Tensor]) -> Tensor:
    """A ``make``: joined along dim 0, then transposed."""
    return _joined(tensors).T


def same(parameter: Tensor, name: str, transpose: bool = False, put: Callable[[Tensor], object] | None = None) -> Entry:
    """A tensor that is taken as it is, or transposed."""
    shape = parameter.T.shape if transpose else parameter.shape
    return Entry(parameter, (name,), (tuple(shape),), transposed if transpose else _joined, put)


def whole(module: nn.Module, prefix: str, called: Callable[[str], str] = str) -> list[Entry]:
    """Every parameter of ``module`` as it is, under ``prefix`` and what ``called`` makes of its own name."""
    return [same(parameter, prefix + called(name)) for name, parameter in module.named_parameters()]


def missing_tensors(entries: list[Entry], checkpoint: Checkpoint) -> list[str]:
    """Names that the entries need and the checkpoint lacks."""
    return [name for entry in entries for name in entry.names if name not in checkpoint.names]


def check_entries(
    entries: list[Entry], checkpoint: Checkpoint, remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    """AdtError if a tensor is missing or has another shape. Reads headers only.

    remedies: what to do if a tensor is missing, by how its name begins.
    """
    missing = missing_tensors(entries, checkpoint)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        fitting = (remedy for prefix, remedy in remedies.items() if missing[0].startswith(prefix))
        remedy = next(fitting, _INCOMPLETE)
        raise AdtError(f"{checkpoint.path} lacks the tensor {missing[0]!r}{more}; {remedy}.")
    for name, shape in (pair for entry in entries for pair in zip(entry.names, entry.shapes)):
        stored = checkpoint[name].shape
        if stored != shape:
            problem = f"{name} has shape {stored}, but {shape} was expected"
            raise AdtError(f"{checkpoint.path}: {problem}; {_ANOTHERS}.")
    _check_kinds([name for entry in entries if entry.parameter.is_floating_point() for name in entry.names], checkpoint)


def _check_kinds(names: list[str], checkpoint: Checkpoint) -> None:
    """AdtError if one of these tensors holds no numbers as they are."""
    scaled = {name.rpartition(".")[0] for name in checkpoint.names if "scale" in name.rpartition(".")[2].lower()}
    for name in names:
        kind, problem = checkpoint[name].dtype, ""
        if not _REAL.fullmatch(kind):
            problem = f"{name} is stored in {kind}, so it is quantised or damaged"
        elif "8_" in kind and not scaled.isdisjoint((name, name.rpartition(".")[0])):
            problem = f"{name} is stored in {kind} with a separate scale, which this version can't read"
        if problem:
            raise AdtError(f"{checkpoint.path}: {problem}; {unsound.ORIGINAL}.")


@torch.no_grad()
def fill(entries: list[Entry], checkpoint: Checkpoint, check: Check | None = None) -> None:
    """Read the parameters one by one, straight to where they belong.

    Args:
        entries: Where the parameters come from.
        checkpoint: The files.
        check: Called before each parameter; it may raise to cancel.
    Raises:
        AdtError: If a number in a file is not finite, or too large for its parameter's dtype.
    """
    for entry in entries:
        if check is not None:
            check()
        sources = [checkpoint[name] for name in entry.names]
        value = entry.make([numbers(stored) for stored in sources])
        (entry.put or entry.parameter.copy_)(value)
        is_clamped = entry.put is not None and entry.parameter.element_size() == 1
        if not is_clamped and may_overflow(entry.parameter.dtype, value.dtype):
            refuse_overflow(entry.parameter, sources)
