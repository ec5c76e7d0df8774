"""Marker file of a process that uses Triton kernels for the first time on a device.

A kernel that writes to a wrong address ends the work of its process: every later operation on the device fails. The
image is lost. So a process writes a marker before its first trial of a kernel, and removes it after its first image. If
the process dies between, the marker stays, and later processes use no kernels on this device. The command
`doctor --kernels` removes the markers and tries the kernels again.

Each process has its own marker, so processes that run at the same time do not disturb each other. A marker only counts
for the environment (:func:`.verdicts.environment`) in which it was written: a new version of a library, a driver or
this pack may have mended the kernel. If the cache folder cannot be written, the marker is in the system's folder for
temporary files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from .. import cache_folder
from ..errors import AdtError, is_out_of_memory
from ..files import opened, parse_json, to_json, write_in
from ..runtime import get_runtime
from . import verdicts

PREFIX = "first-use-"
"""Beginning of a marker's name. A hash of the device and the number of the process follow."""
MAX_BYTES = 4096  # ignore larger files; this module never writes any
SAME_START_SECONDS = 1.0  # largest difference between two readings of the time at which a process has started


def begin(device: torch.device) -> bool:
    """Write this process's marker, unless an image was already completed with kernels on this device.

    Returns:
        Whether kernels may be used: False if no folder can be written, because a crash would then be repeated.
    """
    runtime = get_runtime()
    if device in runtime.proven_devices or device in runtime.first_use_markers:
        return True
    started = psutil.Process().create_time()
    content = {"pid": os.getpid(), "started": started, "environment": verdicts.environment(device)}
    for folder in _folders():
        path = folder / f"{_prefix(device)}{os.getpid()}.json"
        with suppress(AdtError):
            write_in(folder, path.name, to_json(content))
            cache_folder.restrict(path)
            runtime.first_use_markers[device] = path
            return True
    return False


def end(device: torch.device, proven: bool) -> None:
    """Remove this process's marker.

    Args:
        proven: Whether an image was completed with kernels, so that this process needs no further marker.
    """
    runtime = get_runtime()
    if path := runtime.first_use_markers.pop(device, None):
        _remove(path)
    if proven:
        runtime.proven_devices.add(device)


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Remove the marker after the block, unless the block ends with an error of the device.

    After such an error, the marker stays although the process still lives, because the device no longer works.
    """
    try:
        yield
    except BaseException as error:
        if not is_device_error(error):
            end(device, proven=False)
        raise
    end(device, proven=False)


def is_device_error(error: BaseException) -> bool:
    """Return whether an error reports that the device no longer works in this process, such as an illegal address."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error) and not is_out_of_memory(error)


def has_crashed(device: torch.device) -> bool:
    """Return whether a process has died during its first use of kernels on a device, in the present environment."""
    found = [_read(path) for path in _markers(device)]
    here = verdicts.environment(device)
    return any(is_dead and named == here for is_dead, named in found)


def forget(device: torch.device) -> None:
    """Remove the markers of all dead processes, so that kernels are tried again."""
    for path in _markers(device):
        is_dead, _ = _read(path)
        if is_dead:
            _remove(path)


def _read(path: Path) -> tuple[bool, str]:
    """Return whether the process of a marker is dead, and its environment. Other files are no markers."""
    try:
        with opened(path) as file:
            content = parse_json(file.read(MAX_BYTES)) if cache_folder.is_own(file) else None
    except (OSError, ValueError):
        content = None
    match content:
        case {"pid": int(pid), "started": float(started), "environment": str(named)}:
            return not _is_alive(pid, started), named
    return False, ""


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < SAME_START_SECONDS
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError, OSError):  # nothing may be known about processes of other users
        return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _markers(device: torch.device) -> Iterator[Path]:
    for folder in _folders():
        with suppress(OSError):
            yield from folder.glob(f"{_prefix(device)}*.json")


def _folders() -> tuple[Path, Path]:
    return cache_folder.folder(), Path(tempfile.gettempdir())


def _prefix(device: torch.device) -> str:
    return f"{PREFIX}{hashlib.sha256(_identity(device).encode()).hexdigest()[:16]}-"


def _identity(device: torch.device) -> str:
    """Return a text that is different for each GPU of this machine, also for two GPUs of one model."""
    properties: Any = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)  # since torch 2.6
    if uuid is None:
        uuid = torch.cuda.current_device() if device.index is None else device.index
    return f"{properties.name}, {uuid}"
