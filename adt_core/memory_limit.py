"""Main memory that this process may use: that of the machine, or less in a container or under a limit of the shell.

If a process exceeds the limit of its control group (cgroup), Linux kills the process without a message. Containers,
Slurm and systemd set such limits. The shell's `ulimit` sets limits of a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

from .files import read_text

MEMORY_SHARE = 0.8
"""Maximum share of the main memory for weights, KV caches, draft trees and noise together."""
PROCESS_BYTES = 400 * 2**20
"""Main memory of the process without weights, KV caches, draft trees and noise. Python with torch and transformers took
357 to 384 MiB (Linux, bundled model, 8 and 64 images at a time)."""
_PROC = Path("/proc/self")
_LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
"""Name of the file with the limit of a control group, by type of the mounted file system (version 2 and version 1)."""


class MemoryLimit(NamedTuple):
    """Amount of memory, and the origin of the limit for messages, such as "this machine"."""

    bytes: int
    owner: str


def memory_limit(proc: Path = _PROC) -> MemoryLimit:
    """Return the smallest of the limits for the main memory of this process.

    Args:
        proc: Folder of the process in Linux' file system proc. Other systems have none.
    """
    machine = MemoryLimit(_machine_bytes(), "this machine")
    return min([machine, *_cgroup_limits(proc), *_process_limits()], key=lambda limit: limit.bytes)


def usable_bytes(limit: MemoryLimit) -> int:
    """Return the bytes for weights, KV caches, draft trees and noise together."""
    return max(0, int(min(MEMORY_SHARE * limit.bytes, limit.bytes - PROCESS_BYTES)))


def free_address_space() -> int | None:
    """Return the bytes of address space that `ulimit -v` leaves this process, or None without such a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    with suppress(OSError, psutil.Error):
        return None if limit == resource.RLIM_INFINITY else limit - psutil.Process().memory_info().vms
    return None


def _machine_bytes() -> int:
    """Return the main memory of the machine. If the system does not tell it, as in Termux, assume no limit."""
    try:
        return psutil.virtual_memory().total
    except (OSError, psutil.Error, NotImplementedError, RuntimeError):
        with suppress(AttributeError, OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def _cgroup_limits(proc: Path) -> Iterator[MemoryLimit]:
    """Yield the limits of this process's control groups. A group also has the limits of all groups above it."""
    groups = _groups(_lines(proc / "cgroup"))
    for kind, root, mount in filter(None, map(_mounted, _lines(proc / "mountinfo"))):
        if kind not in groups:
            continue
        for folder in _from_group_to_mount(PurePosixPath(groups[kind]), root, Path(mount)):
            text = "".join(_lines(folder / _LIMIT_FILES[kind])[:1]).strip()
            if text.isdecimal():  # without a limit, version 2 has the text "max", and version 1 a huge number
                yield MemoryLimit(int(text), "this container (the memory limit of its control group)")


def _mounted(line: str) -> tuple[str, str, str] | None:
    """Return type, root and mount point of a mounted hierarchy of control groups that can limit memory, else None.

    Args:
        line: Line of `mountinfo`, such as "36 35 0:30 /root/of/mount /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup
            cgroup rw,memory".
    """
    place, _, system = line.rpartition(" - ")
    fields = place.split()
    kind, _, options = system.partition(" ")
    if len(fields) < 5 or kind not in _LIMIT_FILES or (kind == "cgroup" and "memory" not in options.split(",")):
        return None
    return kind, fields[3], fields[4]


def _groups(lines: list[str]) -> dict[str, str]:
    """Return the path of this process's control group for each key of `_LIMIT_FILES`.

    Args:
        lines: Lines such as "4:memory:/docker/1a2b" for version 1, and "0::/user.slice" for version 2.
    """
    groups = {}
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "" or "memory" in controllers.split(","):
            groups["cgroup2" if controllers == "" else "cgroup"] = path
    return groups


def _from_group_to_mount(group: PurePosixPath, root: str, mount: Path) -> Iterator[Path]:
    """Yield the folders of a group and of the groups above it, up to the mounted folder.

    Args:
        group: Path of the group in its hierarchy. A container may see a path that begins outside of its mount.
        root: Path of the mounted group in the hierarchy.
    """
    inner = group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else PurePosixPath()
    yield mount / inner
    yield from (mount / parent for parent in inner.parents)


def _process_limits() -> Iterator[MemoryLimit]:
    """Yield the limits of `ulimit` in terms of main memory.

    They limit the address space ("-v") or its writable private part ("-d"). A part of the address space takes no main
    memory, for example code that has not run. The process cannot use this part of the limit, so it is subtracted.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    try:
        used = psutil.Process().memory_info()
    except (OSError, psutil.Error):
        return
    unused = used.vms - used.rss
    private = getattr(used, "data", 0) - (used.rss - getattr(used, "shared", 0))
    for kind, empty, option in ((resource.RLIMIT_AS, unused, "-v"), (resource.RLIMIT_DATA, private, "-d")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield MemoryLimit(max(0, limit - max(0, empty)), f"this process ('ulimit {option}')")


def _lines(file: Path) -> list[str]:
    """Return the lines of a file, or [] if it cannot be read."""
    try:
        return read_text(file, 1, errors="replace").splitlines()
    except OSError:
        return []
