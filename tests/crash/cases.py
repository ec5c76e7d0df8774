"""What is killed: two commands, and a server that makes a batch. Each says what it has finished."""

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

from adt_core.app.images import read_settings
from tests.tiny import write_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.py")
PROMPTS = ["a cat", "a dog on a mat", "a cow", "seven geese"]
PATIENCE, PAUSE = 600, 0.1
"""Seconds after which a command hangs, and between two looks at what it has finished."""
Seen = Callable[[], None]
"""Called often while a command runs."""
Found = dict[str, str]
"""What was found in a folder, by name."""


class Case:
    """A command and the folder that it writes to.

    writes: about how often it writes a file or a line. begins: the share of its time after which it may write. seconds:
    of the last run to the end.
    """

    writes, begins, seconds = 12, 0.3, 0.0

    def __init__(self, base: Path):
        self.base, self.folder = base, base / "output"
        base.mkdir(parents=True)
        self.checkpoint = write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0)
        (base / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")

    def run(self, seen: Seen, after: float = PATIENCE, fault: tuple[str, int] | None = None) -> bool:
        """Run the command, and kill it after so many seconds, or where ``fault`` says. Was it killed?"""
        raise NotImplementedError

    def finished(self) -> Found:
        """What no kill may change. Fails if anything is half-written."""
        raise NotImplementedError

    def result(self) -> object:
        """What came of it in the end: all that does not depend on time."""
        raise NotImplementedError

    def parts(self) -> list[Path]:
        """Files that killed processes left."""
        return list(self.folder.rglob("*.part"))

    def start_anew(self) -> None:
        """Forget what was made."""
        shutil.rmtree(self.folder, ignore_errors=True)


def pixels(path: Path) -> str:
    """A digest of a picture, which has to be whole."""
    with Image.open(path) as image:
        return hashlib.sha256(image.tobytes()).hexdigest()


def check_whole(folder: Path) -> None:
    """Fails if a file under its final name is half-written."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".png":
            pixels(path)
        elif path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix in (".csv", ".md"):
            assert path.read_bytes().endswith(b"\n"), f"{path} is half-written"


class Command(Case):
    """A command of ``python -m adt_core``."""

    arguments: tuple[str, ...]

    def run(self, seen: Seen, after: float = PATIENCE, fault: tuple[str, int] | None = None) -> bool:
        usual = "--model", self.checkpoint, "--drafter", "jacobi", "--prompts", self.base / "prompts.txt"
        faults = [FAULTS, *map(str, fault)] if fault else []
        command = [sys.executable, *faults, "-m", "adt_core", *self.arguments, *usual]
        variables = {**os.environ, "ADT_TREE_CACHE": str(self.base / "cache")}
        with subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            started = time.monotonic()
            while process.poll() is None and time.monotonic() < started + after:
                seen()
                time.sleep(PAUSE)
            assert after < PATIENCE or process.poll() is not None, "it hangs"
            process.kill()
            code, said = process.wait(), process.stderr.read()
        assert code in (0, -9), said
        self.seconds = time.monotonic() - started if code == 0 else self.seconds
        return code != 0


class Generate(Command):
    """``generate``: pictures of a list, and its three JSON files."""

    writes = len(PROMPTS) + 3

    def __init__(self, base: Path):
        super().__init__(base)
        files = (("output", "o.png"), ("tokens", "tokens.json"), ("trace", "trace.json"), ("report", "report.json"))
        self.arguments = "generate", *(str(x) for name, file in files for x in (f"--{name}", self.folder / file))

    def finished(self) -> Found:
        check_whole(self.folder)
        return {path.name: pixels(path) for path in self.folder.glob("*.png")}

    def result(self) -> object:
        return self.finished(), json.loads((self.folder / "tokens.json").read_bytes())["tokens"]


class Benchmark(Command):
    """``benchmark``: pictures, records, tables."""

    writes = 3 * len(PROMPTS) + 1

    def __init__(self, base: Path):
        super().__init__(base)
        methods = "jacobi,jacobi+lantern"
        self.arguments = "benchmark", "--methods", methods, "--lantern-delta", "0.5", "--output", str(self.folder)

    def finished(self) -> Found:
        check_whole(self.folder)
        found = {}
        for record in self._records():
            found[str(record["prompt"])] = json.dumps(record)
            pictures = {self.folder / run["picture"] for run in record["runs"].values()}
            found |= {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in pictures}
        return found

    def _records(self) -> list[dict]:
        """The whole ones, the first of every prompt."""
        path, found = self.folder / "runs.jsonl", {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:  # a kill has cut it
                continue
            if "prompt" in record:
                found.setdefault(record["prompt"], record)
        return list(found.values())

    def result(self) -> object:
        figures = "tokens", "tau", "target_forwards", "mean_depth", "agreement", "acceptance", "picture"
        whole = json.loads((self.folder / "results.json").read_bytes())["records"]
        assert whole == sorted(self._records(), key=lambda record: record["prompt"])
        return [
            (record["text"], name, [run[figure] for figure in figures], pixels(self.folder / run["picture"]))
            for record in whole
            for name, run in record["runs"].items()
        ]


class Batch(Case):
    """The shipped batch workflow in a real ComfyUI, whose whole server is killed."""

    writes, begins = len(PROMPTS) + 3, 0.0

    def __init__(self, base: Path):
        super().__init__(base)
        sys.path.insert(0, str(ROOT / "tests" / "workflow"))
        from comfy_server import NEWEST, PACKS, Comfy

        self._server = Comfy(NEWEST, base, PACKS)
        self._command = self._server.command

    def run(self, seen: Seen, after: float = PATIENCE, fault: tuple[str, int] | None = None) -> bool:
        python, *rest = self._command()
        faults = [str(FAULTS), *map(str, fault)] if fault else []
        self._server.command = lambda: [python, *faults, *rest]
        with self._server as server:
            prompt_id, started = server.queue(self._prompt()), time.monotonic()
            try:
                while time.monotonic() < started + after and not server.get(f"/history/{prompt_id}"):
                    seen()
                    time.sleep(PAUSE)
                done = server.get(f"/history/{prompt_id}")
            except OSError:  # the server has gone
                return True
            server.process.kill()
        assert not done or done[prompt_id]["status"]["status_str"] == "success", done
        assert done or after < PATIENCE, "it hangs"
        self.seconds = time.monotonic() - started if done else self.seconds
        return not done

    def _prompt(self) -> dict:
        from convert import Graph, to_prompt

        workflow = json.loads(
            (ROOT / "workflows" / "ADT-Tree batch of prompts with report.json").read_text(encoding="utf-8")
        )
        graph = Graph(to_prompt(workflow, self._server.get("/object_info")))
        graph.set("ADTTreePrompts", file="(the text below)", text="\n".join(PROMPTS), start=0, count=len(PROMPTS))
        graph.set("ADTTreeModelLoader", model="tiny").set("ADTTreeDrafterLoader", drafter="jacobi")
        return graph.set("ADTTreeBatchSampler", chunk_size=2).drop("ADTTreeBatchSampler", "settings").prompt

    def finished(self) -> Found:
        check_whole(self.folder)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self._pictures()}

    def _pictures(self) -> list[Path]:
        return [path for path in self.folder.glob("adt_tree_batches/*/*.png") if path.stem != "report"]

    def result(self) -> object:
        (table,) = self.folder.glob("adt_tree_batches/*/report.csv")
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = [(row["id"], row["prompt"], row["file"]) for row in csv.DictReader(file)]
        return rows, {path.name: (read_settings(path)["tokens"], pixels(path)) for path in self._pictures()}


CASES: dict[str, type[Case]] = {"generate": Generate, "benchmark": Benchmark, "batch": Batch}
