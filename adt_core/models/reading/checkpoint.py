"""Tensors and configuration of a checkpoint, read without executing code from its files.

Some checkpoints store fp8 weights with separate scales. The reader multiplies such a weight by its scale. The scale is
a tensor named ``scale_weight`` (ComfyUI's fp8_scaled), ``weight_scale`` (later files of ComfyUI, and others) or
``weight_scale_inv`` (DeepSeek-V3, arXiv 2412.19437, section 3.3). In spite of its name, ``weight_scale_inv`` is also a
factor. A scale has one number for the entire matrix, for each output, or for each block of 128 x 128 weights. The
reader ignores scales of inputs, because this package does not compute products with the stored fp8 numbers.
"""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Callable, KeysView, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.torch_version import TorchVersion

from ...errors import AdtError
from ...files import LARGEST_JSON, list_visible
from . import file_checks
from .fields import json_object, read_json
from .file_checks import PICKLES
from .paths import home_of, is_there, name_of, weight_files

CONFIG = "config_json"
"""Name of a tensor of bytes: the ``config.json`` of a model that is a single weights file."""
TOKENIZER = "tokenizer_json"
"""Name of a tensor of bytes: the ``tokenizer.json`` of a model that is a single weights file."""
SAFE_PICKLES = "2.10"
"""First torch version for which no attack on ``weights_only`` is known. An attack is a pickle that runs code."""
MOST_MAPPED = 2**24
"""Number of bytes to read from a file before opening it again. Opening it again releases the memory of these bytes."""
_UNPICKLING = Lock()
"""Lock for reading a pickle, because torch's list of the classes that pickles may contain is global."""
_WRAPPERS = ("model", "module", "state_dict")  # keys under which training scripts save the weights
_SCALES = ("scale_weight", "weight_scale", "weight_scale_inv")
_IGNORED_SCALES = ("scale_input", "input_scale", "comfy_quant")
_SCALED_FILE = "scaled_fp8"  # marker of ComfyUI's files with scales
_BLOCK = 128
_FP8 = re.compile(r"f(loat)?8_e[45]m\w+", re.IGNORECASE)
_WIDE = re.compile(r"b?f(loat)?(16|32|64)", re.IGNORECASE)


class StoredTensor(NamedTuple):
    """Tensor in a file.

    Attributes:
        shape: Shape of the tensor.
        dtype: Name of the dtype in the notation of the file, such as "BF16" (safetensors) or "bfloat16" (pickles).
        read: Function that reads the tensor to the CPU.
        file: The file.
        name: Name of the tensor in the file.
        close: Function that closes the file until the next read, so that its memory is released. A file of which little
            was read stays open.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    file: Path
    name: str
    close: Callable[[], object] = bool

    @classmethod
    def of(cls, tensor: Tensor, file: Path, name: str) -> StoredTensor:
        """Return an entry for a tensor that is in memory."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.detach, file, name)

    def read_finite(self) -> Tensor:
        """Read the tensor to the CPU, float8 as float32, or raise an AdtError if a number is NaN or infinite."""
        value = widened(self.read())
        if not is_finite(value):
            found = "NaN" if value.isnan().any() else "infinity"
            raise AdtError("tensor.not_finite", file=self.file, name=self.name, found=found)
        return value


def widened(tensor: Tensor) -> Tensor:
    """Convert float8 to float32, because torch can't concatenate or compare float8. Return other tensors unchanged."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite.

    Checking the minimum and the maximum is enough: both are NaN if any number is NaN. ``torch.isfinite`` would allocate
    several tensors of the same size, and takes about 40 times as long on a CPU.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor))


def plain_names(stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Remove the prefixes of torch.compile and DistributedDataParallel from names, which must then be different."""
    plain: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        short = re.sub(r"^(module\.)+", "", name.replace("_orig_mod.", ""))
        if short in plain:
            raise AdtError("tensor.twice", file=tensor.file, tensor=short, one=plain[short].name, other=name)
        plain[short] = tensor
    return plain


def with_scales(stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Multiply fp8 weights by their scales in float32 when they are read, and remove the scales.

    Weights with unsupported scales, and their scales, stay unchanged.
    """
    scaled = dict(stored)
    for name, weight in stored.items():
        stem = name.removesuffix("weight")
        scale = next((stored[stem + kind] for kind in _SCALES if stem + kind in stored), None)
        if scale is not None and stem != name and _is_supported(weight, scale):
            scaled[name] = weight._replace(dtype="F32", read=partial(_product, weight, scale))
            for other in (*(stem + kind for kind in (*_SCALES, *_IGNORED_SCALES)), _SCALED_FILE):
                scaled.pop(other, None)
    return scaled


def _is_supported(weight: StoredTensor, scale: StoredTensor) -> bool:
    if len(weight.shape) != 2 or not _FP8.fullmatch(weight.dtype) or not _WIDE.fullmatch(scale.dtype):
        return False
    outputs, inputs = weight.shape
    blocks = (-(-outputs // _BLOCK), -(-inputs // _BLOCK))
    return scale.shape in ((), (1,), (outputs,), (outputs, 1), blocks)


def _product(weight: StoredTensor, scale: StoredTensor) -> Tensor:
    value = weight.read().float()
    factor = scale.read_finite().float()
    if factor.numel() == 1:
        return value * factor.reshape(())
    if factor.ndim == 2 and factor.shape[1] > 1 or len(factor) != len(value):
        factor = factor.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)
        return value * factor[: value.shape[0], : value.shape[1]]
    return value * factor.reshape(-1, 1)


class _Weights:
    """Reader of a safetensors file that limits how much of the file stays in memory.

    The reader opens the file again after :data:`MOST_MAPPED` bytes. It does not open the file for each tensor, because
    a malicious file can have such a long header that this would take minutes.
    """

    def __init__(self, file: Path):
        self.file = file
        self._opened: safe_open | None = None
        self._mapped = 0

    def read(self, name: str) -> Tensor:
        if self._opened is None or self._mapped > MOST_MAPPED:
            self._opened = safe_open(self.file, "pt")
            self._mapped = 0
        tensor = self._opened.get_tensor(name)
        self._mapped += tensor.nbytes
        return tensor

    def close(self) -> None:
        if self._mapped > MOST_MAPPED:
            self._opened = None


def _read_safetensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file. Only the header is read; ``StoredTensor.read`` reads the data later."""
    weights = _Weights(file)
    try:
        with safe_open(file, "pt") as opened:
            stored = {}
            for name in opened.keys():
                header = opened.get_slice(name)
                shape = tuple(header.get_shape())
                read = partial(weights.read, name)
                stored[name] = StoredTensor(shape, header.get_dtype(), read, file, name, weights.close)
            return stored
    except (SafetensorError, OSError) as error:
        raise AdtError("safetensors.incomplete", file=file, reason=error) from error


def _unpickled(file: Path) -> Any:
    """Load a pickle without executing code from it.

    Training checkpoints, such as LlamaGen's, also contain the command-line arguments as an ``argparse.Namespace``.
    Unpickling a Namespace only sets attributes, so this function allows the class.
    """
    with _UNPICKLING, ExitStack() as stack:
        if Namespace not in torch.serialization.get_safe_globals():
            stack.enter_context(torch.serialization.safe_globals([Namespace]))
        # files that torch before 1.6 wrote are not zip files, and torch can't memory-map them
        return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))


def _read_pickle(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file written by ``torch.save``."""
    if file.suffix == ".safetensors":  # torch.load would read it as a safetensors file
        name = "pytorch_model.bin" if file.stem == "model" else f"{file.stem}.pt"
        raise AdtError("pickled.wrong_name", file=file, name=name)
    if TorchVersion(torch.__version__) < SAFE_PICKLES:
        raise AdtError("pickled.unsafe", file=file, version=torch.__version__, needed=SAFE_PICKLES)
    try:
        loaded = _unpickled(file)
    except Exception as error:  # torch raises many types of exceptions
        raise AdtError("pickled.refused", file=file) from error
    for key in _WRAPPERS:
        loaded = loaded[key] if isinstance(loaded, dict) and isinstance(loaded.get(key), dict) else loaded
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(map(_is_dense, loaded.values())):
        raise AdtError("pickled.not_flat", file=file)
    return {name: StoredTensor.of(value, file, name) for name, value in loaded.items()}


def _is_dense(value: object) -> bool:
    """Return whether a value from a pickle is a dense tensor on the CPU."""
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def read_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors by name of a safetensors file or of a file that ``torch.save`` has written.

    Raises:
        AdtError: If the file cannot be read or contains anything other than tensors.
    """
    return _read_pickle(file) if file_checks.is_pickle(file) else _read_safetensors(file)


class NoWeights(AdtError):
    """Error for a folder without readable weights files."""


class Checkpoint:
    """Folder with a ``config.json`` and weights files, or a single weights file.

    The constructor reads only the configuration and the headers of the weights files. ``StoredTensor.read`` reads a
    tensor.

    Attributes:
        path: The folder or file.
        folder: The folder that contains the weights.
        files: All weights files, including those that ``add`` added.
        config: Fields of the ``config.json`` in the folder or in the weights file; {} if there is none.
    """

    def __init__(self, path: Path):
        """Read the configuration and the headers of the weights files at a path from :func:`.paths.resolve`.

        Raises:
            AdtError: If files are missing or damaged.
        """
        self.path = path
        self.folder = path if path.is_dir() else path.parent
        self.files: list[Path] = []
        self._tensors: dict[str, StoredTensor] = {}
        self.config = read_json(path / "config.json") if is_there(path / "config.json") else {}
        file_checks.refuse_quantised(path, self.config, ())
        files = weight_files(path) if path.is_dir() else [path]
        if not files:
            others = [file.name for file in list_visible(path, "*") if file.suffix in PICKLES]
            if others:
                raise NoWeights("weights.other_files", path=path, others=", ".join(others))
            raise NoWeights("weights.none", path=path)
        for file in files:
            self.add(file, replaces=False)
        self.config = self.config or self.embedded(CONFIG)

    @property
    def largest_file(self) -> int:
        """Size of the largest weights file in bytes."""
        return max(file.stat().st_size for file in self.files)

    def embedded(self, name: str) -> dict:
        """Return the JSON object that is stored as a tensor of bytes; {} if there is no such tensor.

        Raises:
            AdtError: If the tensor is not a JSON object stored as bytes.
        """
        if name not in self.names:
            return {}
        stored = self[name]
        if stored.dtype not in ("U8", "uint8") or math.prod(stored.shape) > LARGEST_JSON * 2**20:
            raise AdtError("tensor.not_json", path=self.path, name=name)
        return json_object(lambda: stored.read().numpy().tobytes(), f"{self.path}: {name}")

    def add(self, file: Path, prefix: str = "", only: tuple[str, ...] = ("",), replaces: bool = True) -> None:
        """Add the tensors of another file.

        Args:
            prefix: Prefix to add to the names of the file's tensors.
            only: Add only tensors whose names, without ``prefix``, begin with one of these strings. By default, all
                tensors are added.
            replaces: Whether the tensors may replace tensors of the same name in other files.

        Raises:
            AdtError: If the file can't be read, or if it has a tensor of the same name as another file although
                ``replaces`` is False.
        """
        file_checks.refuse_dangling(file)
        if not file.is_file():
            raise AdtError("weights.not_a_file", file=file)
        file_checks.refuse_damaged(file)
        stored = with_scales(plain_names(read_tensors(file)))
        file_checks.refuse_quantised(file, {}, stored)
        added = {prefix + name: tensor for name, tensor in stored.items() if name.startswith(only)}
        twice = None if replaces else min(added.keys() & self.names, default=None)
        if twice is not None:
            raise AdtError("tensor.two_files", file=self[twice].file, other=file, tensor=twice)
        self.files.append(file)
        self._tensors |= added

    def use_tensors(self, tensors: Mapping[str, Tensor], kept: str) -> None:
        """Use the tensors of a loaded model. Keep only tensors of the files whose names begin with `kept`."""
        self._tensors = {name: stored for name, stored in self._tensors.items() if name.startswith(kept)}
        self._tensors |= {name: StoredTensor.of(value, self.path, name) for name, value in tensors.items()}

    def find_companion(self, patterns: tuple[str, ...]) -> Path | None:
        """Return a file or folder that the model needs in addition to its own files, such as its codec, or None.

        The method searches the checkpoint's folder, then its parent folder, then ``home``. If it finds only a symbolic
        link whose target is missing, it returns the link; reading the link then raises an error.

        Args:
            patterns: Glob patterns in order of preference.
        """
        folders = dict.fromkeys((self.folder, self.folder.parent, self.home))
        places = [(folder, pattern) for folder in folders for pattern in patterns]
        matches = (match for folder, pattern in places for match in list_visible(folder, pattern))
        links = (folder / pattern for folder, pattern in places if file_checks.dangling_link(folder / pattern))
        return next(matches, None) or next(links, None)

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder, file or repository, for messages and lists."""
        return name_of(self.path)

    @property
    def home(self) -> Path:
        """Folder that contains the checkpoint, and usually other checkpoints."""
        return home_of(self.path)

    @property
    def names(self) -> KeysView[str]:
        """Names of the tensors in all weights files."""
        return self._tensors.keys()

    def __getitem__(self, name: str) -> StoredTensor:
        """Return a tensor by name, without reading its data, or raise an AdtError if it is missing."""
        if name not in self._tensors:
            raise AdtError("tensor.missing", path=self.path, name=name)
        return self._tensors[name]

    def sizes(self, name: str, least: int = 1) -> tuple[int, ...]:
        """Return the shape of a tensor, or raise an AdtError if it is missing or has less than ``least`` dimensions."""
        shape = self[name].shape
        if len(shape) < least:
            raise AdtError("tensor.unexpected_shape", path=self.path, name=name, shape=shape)
        return shape

    def count(self, name: str) -> int:
        """Return the number of tensors in a numbered series, such as one tensor of every layer.

        The series begins with number 0 and ends before the first number without a tensor.

        Args:
            name: Name of the tensors, with "{}" instead of the number.
        """
        return next(number for number in count() if name.format(number) not in self.names)
