"""Tests with two processes in one folder. No result may be lost, duplicated or damaged."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.cases import CASES

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from adt_core.files import add_line, write
name, folder = sys.argv[2], Path(sys.argv[3])
for number in range(200):
    add_line(folder / "lines", f'["{name}", {number}, "' + name * 20_000 + '"]')
    write(folder / f"{number % 3}.json", b'["' + name.encode() * 200_000 + b'"]')
    print(number, flush=True)
"""


@pytest.fixture
def writer(tmp_path):
    """Return a function that starts a process. The process writes lines and files with its name."""

    def start(name: str) -> subprocess.Popen:
        command = [sys.executable, "-c", WRITER, str(ROOT), name, str(tmp_path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return start


def test_files_and_lines_of_several_processes(writer, tmp_path):
    """One of three processes is killed and replaced."""
    processes = {name: writer(name) for name in "abk"}
    killed = processes.pop("k")
    printed = []
    for line in killed.stdout:
        printed.append(int(line))
        if len(printed) == 40:
            killed.kill()
    killed.wait()
    processes["c"] = writer("c")
    for process in processes.values():
        assert len(process.communicate()[0].splitlines()) == 200 and process.returncode == 0
    lines = set()
    for line in (tmp_path / "lines").read_text(encoding="utf-8").splitlines():
        try:
            name, number, _ = json.loads(line)
        except ValueError:  # incomplete, because its process was killed
            continue
        lines.add((name, number))
    assert {(name, number) for name in "abc" for number in range(200)} | {("k", number) for number in printed} <= lines
    assert {len(json.loads((tmp_path / f"{number}.json").read_bytes())[0]) for number in range(3)} == {200_000}
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["generate", "benchmark"])
def test_two_commands_in_one_folder(tmp_path, name):
    """Two processes may write PNGs, lines, reports and benchmarks. For tars and trainings, see `FolderLock`."""
    case = CASES[name](tmp_path / name)
    assert not case.run(lambda: None)
    expected = case.final_result()
    case.reset()
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(case.run, case.results) for _ in range(2)]:
            assert future.result() is False
    assert case.results() and not case.partial_files()
    assert not case.run(lambda: None)  # this run reads the results of both processes
    assert case.final_result() == expected


@pytest.mark.long
def test_two_servers_write_one_batch(tmp_path):
    """Two ComfyUI servers with the same output folder draw the same list."""
    first = CASES["batch"](tmp_path / "first")
    assert not first.run(lambda: None)
    expected = first.final_result()
    first.reset()
    second = CASES["batch"](tmp_path / "second")
    second.folder = first.folder
    second.add_options("--output-directory", str(first.folder))
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(case.run, case.results) for case in (first, second)]:
            assert future.result() is False
    assert not first.partial_files() and first.final_result() == expected
