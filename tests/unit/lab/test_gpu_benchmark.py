"""Rehearsals of the GPU benchmark: runs of its parts with small random models, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import smoke, worker
from benchmarks.gpu.device import activity
from benchmarks.gpu.pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST, TREES, differences
from benchmarks.gpu.report import BARS, markdown
from benchmarks.gpu.tokens import agreement
from tests.command import read_json

ROOT = Path(__file__).resolve().parents[3]
BAD = "import os, time\n\ndef bad():\n    yield {'table': 'Kept', 'figure': 1}\n    "
LATER = "\n\ndef good():\n    yield {'table': 'Kept', 'figure': 2}\n\ndef cases(rehearse):\n"
CASES = "    return [('bad', bad), ('good', good)]\n"


FAULTS = """
import os
import sys

if "benchmarks.gpu.smoke" in sys.orig_argv:
    operation = sys.orig_argv[sys.orig_argv.index("benchmarks.gpu.smoke") + 1]
    import torch
    from adt_core.kernels import choice, first_use, gate, norm, norm_rope_store, verdicts

    def kernel(*operands):
        with choice.launching(operands[0]):
            launches.append(operands)
            if len(launches) > 8:
                raise ValueError("no address") if operation == "gate" else SystemExit(9)
            return reference(*operands[:-1])  # without the number of used rows

    launches = []
    case = choice.Case(lambda: torch.ones(2), lambda: torch.zeros(2))
    trial = choice.Trial([case], 0.1, tuple)
    module = {"gate": gate, "norm": norm, "norm_rope_store": norm_rope_store}.get(operation)
    if module is not None:
        reference = module.reference
        module.kernel = kernel
        module.uses_kernel = lambda x, *more: choice.uses_kernel(operation, x, (), lambda: trial)
        choice.is_nvidia = lambda device: True
        choice._missing_support = lambda device: ""
        if operation != "norm_rope_store":
            choice._decide = lambda trial, device: (True, "it is fast", False)
        first_use.begin = lambda device: True
        verdicts.environment = lambda device: "a device"
"""
"""Module that lets a kernel raise an error, another one end its process, and a third one return wrong values."""


def rehearse(output: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Run the command in a folder, without a GPU."""
    line = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--output", str(output), *arguments]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)


def figures(row: dict) -> list[float]:
    """Return all numbers of a row."""
    values = [part for value in row.values() for part in (value.values() if isinstance(value, dict) else [value])]
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


@pytest.mark.parametrize("name", [name for name in command.PARTS if name != command.SMOKE])
def test_last_case_of_each_part(name, tmp_path):
    """The case runs in this process, because new processes would need more time than the cases."""
    module, _ = command.PARTS[name]
    worker.run(module, tmp_path / "found.jsonl", first=-1, rehearse=True)
    entries = command.read_entries(tmp_path / "found.jsonl")
    assert not [entry["error"] for entry in entries if "error" in entry]
    rows = [entry["row"] for entry in entries if "row" in entry]
    assert rows and all(figures(row) for row in rows)


def test_the_smoke_part_decodes_the_same_tokens_with_and_without_drafts():
    row = smoke.smoke("linear", "int4", rehearse=True)
    assert row["equal"] and row["tokens compared"] > smoke.ROUNDS
    assert row["used"] == "the device is not an NVIDIA GPU"


def test_kernels_that_fail_with_one_allocator_are_unhealthy():
    rows = [{"operation": name} for name in ("attend", "gate", "linear", "norm", "norm_rope_store")]
    assert smoke.healthy_operations(rows, []) == [row["operation"] for row in rows]
    errors = [{"operation": "attend", "error": "exit code -11"}, {"what": "kernels", "error": "stopped"}]
    assert smoke.healthy_operations(rows[:4], errors) == ["gate", "linear", "norm"]
    assert smoke.healthy_operations([], errors) == []


@pytest.mark.parametrize(
    "changed, failure",
    [
        ({}, ""),
        ({"kernels": "ValueError: no address"}, "kernels: ValueError: no address"),
        ({"graphs": "not permitted"}, "graphs: not permitted"),
        ({"fault": "its values differ"}, "fault: its values differ"),
        ({"exact mode": "This device uses smaller products."}, "exact mode: This device uses smaller products."),
        ({"equal": False}, "drafting changed the tokens"),
    ],
)
def test_a_kernel_that_ends_in_a_fallback_has_failed(changed, failure):
    row = {"used": True, "equal": True, "kernels": "on", "graphs": "on", "exact mode": "as usual", "fault": "none"}
    assert smoke.failure_of(row | changed) == failure


def test_each_process_of_the_smoke_part_has_a_cache_folder_of_its_own(monkeypatch):
    """Several processes share the device, so the times of their trials must not decide for later parts."""
    folders = []

    def run(command, env, **options):
        folders.append(env[smoke.CACHE])
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(smoke.subprocess, "run", run)
    list(smoke.cases(rehearse=True)[0][1]())
    assert len(set(folders)) == 2 * len(smoke.KERNELS) and not any(os.path.exists(folder) for folder in folders)


@pytest.mark.parametrize("spent, last", [(0, "rounds"), (30, "bits")])
def test_no_part_begins_after_the_time_is_over(monkeypatch, tmp_path, spent, last):
    """Without time for a part, its minimum would make the run longer than `--minutes`. The start-up counts, too."""
    begun = []

    def run_part(module, seconds, *_):
        begun.append((module, seconds))
        clock[0] += seconds
        return {"status": command.CUT, "seconds": seconds, "limit": seconds} | command._results([], [])

    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(command, "run_part", run_part)
    parts = command.measure(4, tmp_path, True, spent=spent)["parts"]
    assert clock[0] <= 240 - spent and sum(seconds for _, seconds in begun) == clock[0]
    names = [name for name, part in parts.items() if part["status"] != command.LEFT_OUT]
    assert names == list(command.PARTS)[: names.index(last) + 1]
    assert list(parts) == list(command.PARTS) and "Left out" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_the_time_limit_begins_with_the_process(monkeypatch, tmp_path):
    spent = []
    monkeypatch.setattr(command, "measure", lambda *given: spent.append(given[-1]) or {"parts": {}})
    assert command.main(["--rehearse", "--output", str(tmp_path)]) == 0
    assert spent[0] > 0


def test_a_process_that_dies_or_hangs_is_an_error_of_its_kernel(monkeypatch):
    def run(command, **options):
        if "gate" in command:
            raise subprocess.TimeoutExpired(command, 60)
        return subprocess.CompletedProcess(command, -11, "", "loading\nIllegal instruction\n")

    monkeypatch.setattr(smoke.subprocess, "run", run)
    rows = list(smoke.cases(rehearse=True)[0][1]())
    assert [row["operation"] for row in rows] == [name for name, _ in smoke.KERNELS] * 2
    assert rows[0]["what"] == "attend, bf16, native" and rows[0]["error"] == "exit code -11: Illegal instruction"
    assert rows[1]["error"].startswith("TimeoutExpired")


@pytest.mark.long
def test_a_kernel_that_raises_or_kills_its_process_or_is_wrong_costs_only_its_own_rows(tmp_path):
    """A module that Python imports at its start makes the kernels fail in the processes of the part `smoke`."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS, encoding="utf-8")
    parts = "smoke", "precision", "rounds", "device"
    run = rehearse(tmp_path, tmp_path, "--only", *parts, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert run.returncode == 1, run.stderr
    parts = read_json(tmp_path / "gpu.json")["parts"]
    assert list(parts) == ["smoke", "precision", "rounds", "device"]
    assert [(error["what"], error["error"]) for error in parts["smoke"]["errors"]] == [
        (f"{name}, bf16, {allocator}", error)
        for allocator in smoke.ALLOCATORS
        for name, error in (
            ("gate", "kernels: ValueError: no address"),
            ("norm", "exit code 9: no output"),
            ("norm_rope_store", "fault: its values differ from PyTorch's by 1"),
        )
    ]
    assert all(row["equal"] for row in parts["smoke"]["rows"]), "an image must be right although a kernel failed"
    for name in ("precision", "rounds", "device"):
        assert parts[name]["status"] == command.ENDED and not parts[name]["errors"], name
    assert "kernels of the later parts: attend,linear\n" in run.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rehearsal_completes_every_part(tmp_path):
    run = rehearse(tmp_path, ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
    results = read_json(tmp_path / "gpu.json")
    assert results["rehearsal"] and list(results["parts"]) == list(command.PARTS)
    for name, part in results["parts"].items():
        assert part["status"] == command.ENDED and not part["errors"], name
        assert part["rows"] and part["begun"] == part["cases"], name
        assert all(figures(row) for row in part["rows"]), name
    device = results["parts"]["device"]["rows"][0]["device"]
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Rehearsal with small random models on {device}; ")
    assert "not met" not in page


def test_without_cuda_the_command_prints_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "has_cuda", lambda: False)
    assert command.main(["--output", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Return a function that runs parts of a benchmark. Each part is given by the code of its first case."""

    def run(minutes: float, **bodies: str) -> dict:
        for name, body in bodies.items():
            (tmp_path / f"part_{name}.py").write_text(BAD + body + LATER + CASES, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(command, "PARTS", {name: (f"part_{name}", 1) for name in bodies})
        return command.measure(minutes, tmp_path / "out", True)["parts"]

    return run


@pytest.mark.long
def test_failed_part_is_reported_and_the_others_run(parts, tmp_path):
    found = parts(5, crash="os._exit(3)", error="raise ValueError('odd')")
    assert [part["status"] for part in found.values()] == [command.FAILED, command.ENDED]
    assert found["error"]["errors"] == [{"what": "bad", "error": "ValueError: odd"}]
    assert [error["what"] for error in found["crash"]["errors"]] == ["bad"]
    assert "exit code 3" in found["crash"]["errors"][0]["error"]
    for name, part in found.items():
        assert [row["figure"] for row in part["rows"]] == [1, 2], name
    page = (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8")
    assert "- bad: ValueError: odd" in page and "exit code 3" in page and "see crash, error." in page


@pytest.mark.parametrize("seconds, silence", [(0.5, 60), (60, 0.5)], ids=["time limit", "silence"])
def test_worker_is_killed_at_a_limit(tmp_path, seconds, silence):
    started = time.monotonic()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert command.run_worker(sleeper, tmp_path / "lines", tmp_path / "log", seconds, silence, list) is None
    assert time.monotonic() - started < 30


@pytest.mark.long
def test_results_are_written_while_a_part_runs(parts, tmp_path, monkeypatch):
    """Results must be written immediately, because the run may be interrupted at any time."""
    seen = []
    monkeypatch.setattr(command, "write_json", lambda _, results: seen.append(len(results["parts"]["slow"]["rows"])))
    parts(1, slow="time.sleep(3)")
    assert 1 in seen[:-1] and seen[-1] == 2


@pytest.mark.long
def test_part_is_stopped_at_its_limit(parts):
    found = parts(0.8, slow="time.sleep(300)", fine="pass")
    assert found["slow"]["status"] == command.CUT and found["fine"]["status"] == command.ENDED
    assert [row["figure"] for row in found["slow"]["rows"]] == [1] and found["slow"]["left_out"] == ["good"]
    assert found["slow"]["errors"][0]["what"] == "bad"
    assert [row["figure"] for row in found["fine"]["rows"]] == [1, 2]


@pytest.mark.long
def test_hanging_case_is_stopped_and_the_next_one_runs(parts, monkeypatch):
    monkeypatch.setattr(command, "MIN_SILENCE", 12.0)
    monkeypatch.setattr(command, "MAX_SILENCE_SHARE", 0.0)
    found = parts(1, hangs="time.sleep(300)")["hangs"]
    assert found["status"] == command.FAILED
    assert found["errors"] == [{"what": "bad", "error": "stopped after 12 s without output"}]
    assert [row["figure"] for row in found["rows"]] == [1, 2]


@pytest.mark.long
def test_part_that_fails_to_import_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "PARTS", {"missing": ("no_such_part", 1)})
    part = command.measure(1, tmp_path, True)["parts"]["missing"]
    assert part["status"] == command.FAILED and "no_such_part" in part["errors"][0]["error"]


def test_activity_summarises_a_profiler_trace():
    def event(category: str, name: str, start: float, duration: float) -> dict:
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}

    seen = activity(
        [
            event("kernel", "gemm", 0, 10),
            event("kernel", "norm", 5, 10),  # overlaps the first event
            event("gpu_memcpy", "copy", 20, 5),
            event("cuda_runtime", "cudaGraphLaunch", 0, 1),
            event("cuda_runtime", "cudaDeviceSynchronize", 1, 1),
            event("cpu_op", "aten::mm", 0, 1),
            {"ph": "M", "name": "process_name"},
        ]
    )
    assert (seen.kernels, seen.launches) == (3, 1)
    assert seen.busy == pytest.approx(20e-6)


def test_differences_separate_a_level_from_the_rest():
    # A plain round takes 1 s, the forward pass of a tree 1.1 s, one level of drafts 0.05 s, and everything else 0.02 s.
    seconds = {f"{FORWARD}{DRAFTS + 1}": 1.1, PLAIN_ROUND: 1.0}
    seconds |= {tree: 1.1 + 0.05 * levels + 0.02 for tree, levels in zip(TREES, (3, 6))}
    taken = {(piece, "eager"): [value] * 3 for piece, value in seconds.items()}
    found = {row["piece"]: row["steps"] for row in differences(taken, [3, 6], "eager")}
    assert found == {LEVEL: pytest.approx(0.05), REST: pytest.approx(0.02)}
    assert differences({key: taken[key] for key in list(taken)[:-1]}, [3, 6], "eager") == []


def test_flips_count_tokens_up_to_the_first_difference():
    expected = torch.zeros(3, 10, dtype=torch.long)
    codes = expected.clone()
    codes[1, 4:] = 1
    codes[2, 9] = -1  # this token wasn't decoded
    found = agreement(codes, expected)
    assert found["flips per token"] == pytest.approx(1 / (10 + 5 + 9))
    assert (found["equal images"], found["first"]) == (2, 4)
    assert found["tokens"] == pytest.approx(23 / 29)


def test_bar_is_met_not_met_or_not_measured():
    least = next(bar for bar in BARS if "plain round, share" in bar.title)
    assert least.met(0.71) and not least.met(0.69)
    row = {"table": "Pieces", "shape": "Anole-7B", "weights": "bf16", "piece": PLAIN_ROUND, "launched": "captured"}
    pieces = dict(about="It is measured.", status="ended", seconds=1, limit=2, cases=1, begun=1, left_out=[], errors=[])
    pieces["rows"] = [row | {"share of the limit": 0.8}]
    page = markdown({"rehearsal": False, "date": "today", "commit": None, "parts": {"pieces": pieces}})
    lines = [line for line in page.splitlines() if line.startswith(f"| {least.title}")]
    assert lines == [f"| {least.title} | at least 0.7 | 0.8 | met |"]
    assert page.count("not measured") == len(BARS) - 1
