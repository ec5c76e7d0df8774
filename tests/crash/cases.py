"""Commands that the crash tests kill: two commands of ``adt_core``, and a server that runs a batch workflow."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from adt_core.run.images import read_settings
from tests.command import read_grids
from tests.tiny import write_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.py")
PROMPTS = ["a cat", "a dog on a mat", "a cow", "seven geese"]
TIMEOUT = 600  # seconds after which a command counts as hanging
POLL_INTERVAL = 0.1  # seconds between two checks of a running command's results
Check = Callable[[], None]  # function that checks the results while a command is running
Results = dict[str, str]  # name of a finished result -> its digest or content


class Case:
    """Command, the folder of everything that it needs, and its output folder."""

    writes = 12  # approximate number of files and lines that the command writes
    begins = 0.3  # share of the run after which the command starts to write
    seconds = 0.0  # duration of the last completed run

    def __init__(self, base: Path):
        self.base = base
        self.folder = base / "output"
        base.mkdir(parents=True)
        self.checkpoint = write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0)
        (base / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")

    def run(self, check: Check, after: float = TIMEOUT, fault: tuple[str, int] | None = None) -> bool:
        """Run the command.

        Args:
            after: Seconds after which to kill the command.
            fault: Kind and number of the moment at which a fault kills the command; see :mod:`.faults`.

        Returns:
            Whether the command was killed.
        """
        raise NotImplementedError

    def results(self) -> Results:
        """Return the results that a kill must not change. Fail if a file is incomplete."""
        raise NotImplementedError

    def final_result(self) -> object:
        """Return the outcome of a completed run, without values that depend on timing."""
        raise NotImplementedError

    def partial_files(self) -> list[Path]:
        """Return the temporary files of killed processes."""
        return list(self.folder.rglob("*.part"))

    def reset(self) -> None:
        """Delete the output."""
        shutil.rmtree(self.folder, ignore_errors=True)


def pixel_digest(path: Path) -> str:
    """Return a digest of an image's pixels. Fail if the file is incomplete."""
    with Image.open(path) as image:
        return hashlib.sha256(image.tobytes()).hexdigest()


def check_complete(folder: Path) -> None:
    """Fail if a file with a final name is incomplete."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".png":
            pixel_digest(path)
        elif path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix in (".csv", ".md"):
            assert path.read_bytes().endswith(b"\n"), f"{path} is incomplete"


class Command(Case):
    """Command of ``python -m adt_core``."""

    arguments: tuple[str, ...]

    def run(self, check: Check, after: float = TIMEOUT, fault: tuple[str, int] | None = None) -> bool:
        common = ("--model", self.checkpoint, "--drafter", "jacobi", "--prompts", self.base / "prompts.txt")
        faults = [FAULTS, *map(str, fault)] if fault else []
        command = [sys.executable, *faults, "-m", "adt_core", *self.arguments, *common]
        variables = {**os.environ, "ADT_TREE_CACHE": str(self.base / "cache")}
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, env=variables, **streams) as process:
            started = time.monotonic()
            while process.poll() is None and time.monotonic() < started + after:
                check()
                time.sleep(POLL_INTERVAL)
            assert after < TIMEOUT or process.poll() is not None, "timeout"
            process.kill()
            code = process.wait()
            errors = process.stderr.read()
        assert code in (0, -9), errors
        self.seconds = time.monotonic() - started if code == 0 else self.seconds
        return code != 0


class Generate(Command):
    """Command ``generate`` with a list of prompts. For each image, it writes three lines and a PNG; then, a report."""

    writes = 4 * len(PROMPTS) + 1

    def __init__(self, base: Path):
        super().__init__(base)
        files = (("output", ""), ("tokens", "tokens.jsonl"), ("trace", "trace.jsonl"), ("report", "report.json"))
        options = (str(word) for name, file in files for word in (f"--{name}", self.folder / file))
        self.arguments = ("generate", *options)

    def results(self) -> Results:
        check_complete(self.folder)
        return {path.name: pixel_digest(path) for path in self.folder.glob("*.png")}

    def final_result(self) -> object:
        return self.results(), read_grids(self.folder / "tokens.jsonl")


class Benchmark(Command):
    """Command ``benchmark``. It writes images, records and tables."""

    writes = 3 * len(PROMPTS) + 1

    def __init__(self, base: Path):
        super().__init__(base)
        methods = "jacobi,jacobi+lantern"
        self.arguments = ("benchmark", "--methods", methods, "--lantern-delta", "0.5", "--output", str(self.folder))

    def results(self) -> Results:
        check_complete(self.folder)
        results = {}
        for record in self._records():
            results[str(record["prompt"])] = json.dumps(record)
            images = {self.folder / run["picture"] for run in record["runs"].values()}
            results |= {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in images}
        return results

    def _records(self) -> list[dict]:
        """Return the complete records. If a prompt has several records, return only the first."""
        path = self.folder / "runs.jsonl"
        records = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:  # the record is incomplete because of a kill
                continue
            if "prompt" in record:
                records.setdefault(record["prompt"], record)
        return list(records.values())

    def final_result(self) -> object:
        figures = ("tokens", "tau", "target_forwards", "mean_depth", "agreement", "acceptance", "picture")
        records = json.loads((self.folder / "results.json").read_bytes())["records"]
        assert records == sorted(self._records(), key=lambda record: record["prompt"])
        return [
            (record["text"], name, [run[figure] for figure in figures], pixel_digest(self.folder / run["picture"]))
            for record in records
            for name, run in record["runs"].items()
        ]


class Batch(Case):
    """Batch workflow of the pack in a ComfyUI server. The test kills the server."""

    writes = len(PROMPTS) + 3
    begins = 0.0

    def __init__(self, base: Path):
        super().__init__(base)
        sys.path.insert(0, str(ROOT / "tests" / "workflow"))
        from comfy_server import NEWEST, PACKS, Comfy

        self._server = Comfy(NEWEST, base, PACKS)
        self._command = self._server.command

    def add_options(self, *options: str) -> None:
        """Start the server with further options."""
        self._server.options += options

    def run(self, check: Check, after: float = TIMEOUT, fault: tuple[str, int] | None = None) -> bool:
        python, *rest = self._command()
        faults = [str(FAULTS), *map(str, fault)] if fault else []
        self._server.command = lambda: [python, *faults, *rest]
        with self._server as server:
            prompt_id = server.queue(self._prompt())
            started = time.monotonic()
            try:
                while time.monotonic() < started + after and not server.get(f"/history/{prompt_id}"):
                    check()
                    time.sleep(POLL_INTERVAL)
                done = server.get(f"/history/{prompt_id}")
            except OSError:  # the fault has killed the server
                return True
            server.process.kill()
        assert not done or done[prompt_id]["status"]["status_str"] == "success", done
        assert done or after < TIMEOUT, "timeout"
        self.seconds = time.monotonic() - started if done else self.seconds
        return not done

    def _prompt(self) -> dict:
        from convert import Graph, to_prompt

        path = ROOT / "workflows" / "ADT-Tree batch of prompts with report.json"
        workflow = json.loads(path.read_text(encoding="utf-8"))
        graph = Graph(to_prompt(workflow, self._server.get("/object_info")))
        graph.set("ADTTreePrompts", file="(the text below)", text="\n".join(PROMPTS), start_index=0, count=len(PROMPTS))
        graph.set("ADTTreeModelLoader", model="tiny")
        drafter = graph.add("ADTTreeDrafterLoader", model=graph.link("ADTTreeModelLoader"), drafter="jacobi")
        return graph.set("ADTTreeBatchSampler", batch_size=2, drafter=drafter).prompt

    def results(self) -> Results:
        check_complete(self.folder)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self._images()}

    def _images(self) -> list[Path]:
        return [path for path in self.folder.glob("adt_tree_batches/*/*.png") if path.stem != "report"]

    def final_result(self) -> object:
        (table,) = self.folder.glob("adt_tree_batches/*/report.csv")
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = [(row["id"], row["prompt"], row["file"]) for row in csv.DictReader(file)]
        return rows, {path.name: (read_settings(path)["tokens"], pixel_digest(path)) for path in self._images()}


CASES: dict[str, type[Case]] = {"generate": Generate, "benchmark": Benchmark, "batch": Batch}
