"""Tests of the memory limits of containers (cgroup) and shells (ulimit)."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from adt_core import Drafting, load_drafter, load_target
from adt_core.engine.device import memory
from adt_core.memory_limit import MemoryLimit, memory_limit, usable_bytes
from adt_core.settings import BUNDLED
from tests.drafted import new_decoding
from tests.raising import raises_key

MACHINE = 64 * 2**30
MIB = 2**20
V2 = "36 25 0:30 {root} {mount} rw,nosuid - cgroup2 cgroup rw,nsdelegate"
V1 = "37 25 0:31 {root} {mount} rw,nosuid - cgroup cgroup rw,{controllers}"
UNLIMITED = "9223372036854771712"

CASES = {
    "version 2, in a container": ("0::/", "/", {"memory.max": "900M"}, 900),
    "version 2, unlimited": ("0::/", "/", {"memory.max": "max"}, None),
    "version 2, no file at the root": ("0::/", "/", {}, None),
    "version 2, a service": ("0::/a/b", "/", {"a/memory.max": "max", "a/b/memory.max": "700M"}, 700),
    "version 2, the group above is smaller": ("0::/a/b", "/", {"a/memory.max": "500M", "a/b/memory.max": "700M"}, 500),
    "version 2, outside of the mount": ("0::/../../b", "/", {"memory.max": "600M"}, 600),
    "version 1, in a container": ("4:memory:/docker/1a", "/docker/1a", {"memory.limit_in_bytes": "900M"}, 900),
    "version 1, with a namespace": ("4:cpu,memory:/", "/", {"memory.limit_in_bytes": "900M"}, 900),
    "version 1, a job": ("4:memory:/slurm/j1", "/", {"slurm/j1/memory.limit_in_bytes": "800M"}, 800),
    "version 1, unlimited": ("4:memory:/", "/", {"memory.limit_in_bytes": UNLIMITED}, None),
    "another group is smaller": ("4:memory:/a\n3:cpu:/b", "/", {"b/memory.limit_in_bytes": "800M"}, None),
    "an unexpected text": ("0::/", "/", {"memory.max": "many"}, None),
    "an incomplete line": ("0", "/", {"memory.max": "900M"}, 900),
}
"""Lines of /proc/self/cgroup, mounted group, limits by path, and the expected limit in MiB (None: the machine's)."""


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=MACHINE))


def write_groups(folder, groups, root, limits):
    """Write the files that Linux shows to a process. Return the folder that stands for /proc/self."""
    mount = folder / "sys"
    for name, limit in limits.items():
        file = mount / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_bytes(limit) + "\n", encoding="utf-8")
    is_first = "memory" in groups
    line = V1.format(root=root, mount=mount, controllers="memory") if is_first else V2.format(root=root, mount=mount)
    other = V1.format(root="/", mount=folder / "other", controllers="cpu")
    (folder / "cgroup").write_text(f"5:pids:/x\n{groups}\n", encoding="utf-8")
    (folder / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{other}\n{line}\nshort\n", encoding="utf-8")
    return folder


def _bytes(limit):
    return str(int(limit[:-1]) * MIB) if limit.endswith("M") else limit


@pytest.mark.parametrize("case", CASES)
def test_the_limit_of_a_control_group(machine, tmp_path, case):
    groups, root, limits, expected = CASES[case]
    limit = memory_limit(write_groups(tmp_path, groups, root, limits))
    if expected is None:
        assert limit == (MACHINE, "this machine")
    else:
        assert limit.bytes == expected * MIB and "container" in limit.owner


def test_the_machine_counts_where_linux_files_are_missing(machine, tmp_path):
    assert memory_limit(tmp_path / "missing") == (MACHINE, "this machine")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' limits of a process")
@pytest.mark.parametrize("kind, option", [("RLIMIT_AS", "-v"), ("RLIMIT_DATA", "-d")])
def test_the_limit_of_a_shell(kind, option):
    """Memory up to the result can be allocated, and an allocation of the complete limit fails."""
    code = f"""
import resource
resource.setrlimit(resource.{kind}, (600 * 2**20,) * 2)
from adt_core.memory_limit import memory_limit
import psutil
limit = memory_limit()
free = limit.bytes - psutil.Process().memory_info().rss
bytearray(free - 30 * 2**20)
try:
    bytearray(free + 60 * 2**20)
except MemoryError:
    print(limit.bytes, limit.owner)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, owner = done.stdout.strip().split(" ", 1)
    assert owner == f"this process ('ulimit {option}')" and 400 * MIB < int(size) <= 600 * MIB


@pytest.mark.parametrize("images, limit, fits", [(64, 900, False), (64, 1100, False), (64, 1400, True), (8, 900, True)])
def test_images_that_exceed_the_limit_are_refused(monkeypatch, images, limit, fits):
    """64 images of the bundled model took 1255 MiB at their peak, and 8 images took 508 MiB (measured on Linux)."""
    target = load_target()
    drafter = load_drafter(BUNDLED, target)
    monkeypatch.setattr(memory, "memory_limit", lambda: MemoryLimit(limit * MIB, "this container"))
    decoding = new_decoding(
        target, [target.encode_prompt("a red house")] * images, drafter=drafter, drafting=Drafting("adt-tree")
    )
    if fits:
        next(iter(decoding))
    else:
        with raises_key("memory.too_many_images", count=images, owner="this container"):
            next(iter(decoding))


def test_most_of_a_large_memory_can_be_used():
    assert usable_bytes(MemoryLimit(10 * 2**30, "this machine")) == 8 * 2**30
    assert usable_bytes(MemoryLimit(1, "this machine")) == 0
