"""Tests of the marker of the first use of Triton kernels, with processes that are killed.

Fakes replace the GPU and its kernel, as in :mod:`tests.unit.kernels.test_kernel_failures`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, cache_folder, cli, load_target
from adt_core.app import doctor
from adt_core.errors import AdtError
from adt_core.kernels import choice, first_use, verdicts
from adt_core.policies import PLAIN
from adt_core.runtime import get_runtime, new_runtime
from tests.drafted import new_decoding
from tests.raising import raises_key

pytestmark = pytest.mark.usefixtures("runtime")

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
X = torch.arange(4.0)
PROCESS = """
import os, signal, sys
import torch
from adt_core import Drafting, load_target
from adt_core.kernels import choice, first_use, gate
from tests.drafted import run
from tests.unit.kernels.test_first_use import as_gpu

place = sys.argv[1]
as_gpu()
calls = []

def kernel(gate_up, activation, used_rows=None):
    calls.append(gate_up)
    if place == "image" and len(calls) > 20 or place == "trial":
        os.kill(os.getpid(), signal.SIGKILL)
    return gate.reference(gate_up, activation)

def trial(x, activation):
    return choice.Trial([choice.Case(lambda: kernel(x, activation), lambda: gate.reference(x, activation))], 0, tuple)

gate.kernel = kernel
gate.uses_kernel = lambda x, activation: choice.uses_kernel("gate", x, (activation,), lambda: trial(x, activation))
target = load_target(sys.argv[2])
print(run(target, None, ["a cat"]).codes.sum().item(), len(calls))
"""
"""Program that draws an image. It kills itself in a trial or in the image, or in neither."""


def as_gpu(patch=setattr):
    """Treat the CPU as an NVIDIA GPU with Triton."""
    properties = SimpleNamespace(name="a GPU", uuid="1")
    patch(torch.cuda, "get_device_properties", lambda device: properties)
    patch(torch.cuda, "get_device_capability", lambda device: (8, 6))
    patch(torch.cuda, "get_allocator_backend", lambda: "native")
    patch(verdicts, "environment", lambda device: "an environment")
    patch(choice, "find_verdict", lambda *given: None)
    patch(choice, "save_verdict", lambda device, verdict: verdict)
    patch(choice, "is_nvidia", lambda device: True)
    patch(choice, "device_times", lambda functions, device: [1.0, 2.0])


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    as_gpu(monkeypatch.setattr)
    return tmp_path / "cache"


def markers(folder):
    return sorted(folder.glob(f"{first_use.PREFIX}*")) if folder.exists() else []


def use_kernel():
    trial = choice.Trial([choice.Case(lambda: X, lambda: X)], 0, tuple)
    return choice.uses_kernel("gate", X, (4,), lambda: trial)


def write_dead(folder, **changes):
    """Write the marker of a process that has died."""
    first_use.begin(CPU)
    (path,) = markers(folder)
    content = json.loads(path.read_text(encoding="utf-8")) | {"started": 1.0} | changes
    first_use.end(CPU, proven=False)
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    path.chmod(0o600)
    return path


def draw(place, target, folder):
    command = [sys.executable, "-c", PROCESS, place, str(target)]
    variables = {"ADT_TREE_CACHE": str(folder), "TMPDIR": str(folder.parent), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)


@pytest.mark.long  # three processes
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("place", ["trial", "image"])
def test_a_killed_process_is_not_repeated(place, tiny, folder, monkeypatch, capsys):
    killed = draw(place, tiny / "target", folder)
    assert killed.returncode == -signal.SIGKILL and len(markers(folder)) == 1, killed.stderr
    drawn = draw(place, tiny / "target", folder)
    assert not drawn.returncode, drawn.stderr
    assert drawn.stdout.split()[1] == "0", "no kernel is launched"
    messages = [line for line in drawn.stderr.splitlines() if "Triton" in line]
    assert len(messages) == 1 and "doctor --kernels" in messages[0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(doctor, "run", lambda *given: f"usable: {choice.supports_kernels(CPU)}")
    assert cli.main(["doctor", "--kernels"]) == 0 and capsys.readouterr().out == "usable: True\n"
    again = draw("nowhere", tiny / "target", folder)
    assert again.stdout.split()[0] == drawn.stdout.split()[0] and int(again.stdout.split()[1]) > 0
    assert not markers(folder), "the marker is removed after the first image"


def test_the_marker_is_written_before_a_trial_and_only_if_a_kernel_is_tried(folder, monkeypatch):
    with choice.watched(CPU):
        assert not markers(folder)
        assert use_kernel() and len(markers(folder)) == 1
    assert not markers(folder)
    monkeypatch.setenv(choice.VARIABLE, "0")
    with new_runtime(), choice.watched(CPU):
        assert not use_kernel() and not markers(folder)


def test_later_images_of_a_process_need_no_marker_after_the_first_one(folder):
    assert use_kernel()
    with choice.watched(CPU):
        first_use.end(CPU, proven=False)  # cancelled
    with choice.watched(CPU):
        assert len(markers(folder)) == 1, "the next image is the first one again"
        first_use.end(CPU, proven=True)
    with choice.watched(CPU):
        assert not markers(folder)


def test_the_marker_stays_until_an_image_is_complete(folder, tiny):
    """The last tokens of the first image are kept. All tokens of the second image are kept, so no round draws it."""
    target = load_target(tiny / "target")
    first_use.begin(CPU)
    kept = torch.zeros(2, target.num_cells, dtype=torch.long)
    kept[0, :4] = -1
    rounds = iter(new_decoding(target, [target.encode_prompt("a cat")] * 2, drafting=Drafting(PLAIN), kept=kept))
    for _ in range(3):  # the first token is decided before the rounds
        assert len(markers(folder)) == 1
        next(rounds)
    assert not markers(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, RuntimeError])
def test_a_cancelled_image_removes_the_marker(folder, error):
    with pytest.raises(error), choice.watched(CPU):
        use_kernel()
        raise error
    assert not markers(folder)


def test_an_error_of_the_device_keeps_the_marker_and_names_the_variable(folder):
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with more.")
    with raises_key("gpu.failed", variable="ADT_TREE_KERNELS", reason="illegal memory access"), choice.watched(CPU):
        use_kernel()
        raise error
    assert len(markers(folder)) == 1
    with new_runtime():
        assert choice.supports_kernels(CPU), "this process lives, so its marker does not count"


def test_each_device_and_environment_has_its_own_marker(folder, monkeypatch):
    write_dead(folder)
    assert not choice.supports_kernels(CPU)
    with new_runtime():
        monkeypatch.setattr(verdicts, "environment", lambda device: "a new version")
        assert choice.supports_kernels(CPU)
    with new_runtime():
        other = SimpleNamespace(name="a GPU", uuid="2")
        monkeypatch.setattr(verdicts, "environment", lambda device: "an environment")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: other)
        assert choice.supports_kernels(CPU)


def test_processes_that_run_at_the_same_time_do_not_disturb_each_other(folder):
    """Another process of this user is alive: its marker neither counts nor is removed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = first_use.psutil.Process(process.pid).create_time()
        other = write_dead(folder, pid=process.pid, started=started)
        other = other.rename(other.with_name(other.name.replace(str(os.getpid()), str(process.pid))))
        assert choice.supports_kernels(CPU) and use_kernel() and len(markers(folder)) == 2
        first_use.end(CPU, proven=True)
        first_use.forget(CPU)
        assert markers(folder) == [other]
    finally:
        process.communicate(b"\n")
    assert first_use.has_crashed(CPU), "now the other process has ended without removing its marker"


def test_with_a_read_only_cache_folder_the_marker_is_in_the_temporary_folder(folder):
    folder.write_text("a file where the folder should be", encoding="utf-8")
    assert use_kernel() and len(markers(folder.parent)) == 1
    first_use.end(CPU, proven=True)
    assert not markers(folder.parent)


def test_without_a_folder_that_can_be_written_no_kernel_is_used(folder, monkeypatch, caplog):
    def fail(*given):
        raise AdtError("read-only")

    monkeypatch.setattr(first_use, "write_in", fail)
    assert not use_kernel() and not use_kernel()
    assert get_runtime().kernel_failure == choice.NO_FOLDER and len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such permissions")
@pytest.mark.parametrize("mode, counts", [(0o600, True), (0o644, True), (0o660, False), (0o666, False)])
def test_markers_that_others_may_write_do_not_count(folder, mode, counts):
    write_dead(folder).chmod(mode)
    assert first_use.has_crashed(CPU) is counts


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": "1"}', '{"pid": -5, "started": 1.0, "environment": ""}'])
def test_damaged_markers_do_not_count(folder, content):
    write_dead(folder).write_text(content, encoding="utf-8")
    assert choice.supports_kernels(CPU)
