"""Three shards of a list of 200 prompts, killed 20 times at random moments, and merged.

The prompts are the captions of the pack. The union of the shards must equal an uninterrupted run. With the environment
variable ``ADT_TREE_SHARD_PROMPTS=10000``, the list repeats the captions, and has images in subfolders.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adt_core import cli
from adt_core.app.prompts import BUNDLED_CAPTIONS, read_prompts
from adt_core.run.images import read_settings
from tests.command import read_lines, words
from tests.crash.cases import pixel_digest
from tests.tiny import write_tiny_checkpoint

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
]
ROOT = Path(__file__).resolve().parents[2]
KILLS = 20
PROMPTS = int(os.environ.get("ADT_TREE_SHARD_PROMPTS", "200"))
SHARDS = ("1/3", "2/3", "3/3")


class Shards:
    """Processes that generate the images of a list in an output folder, and the number of their kills."""

    def __init__(self, folder: Path, options: dict):
        self.folder = folder / "parts"
        self.kills = 0
        self._options = {**options, "tokens": folder / "t.jsonl", "report": folder / "r.json"}
        self._log = (folder / "log.txt").open("w", encoding="utf-8")
        self._rng = random.Random(4)
        self._running: dict[str, subprocess.Popen] = {}
        self._due: dict[str, int] = {}  # number of files in the folder at which a shard is killed

    def run(self) -> None:
        """Start the shards, kill them, and start them again until all are finished."""
        waiting = list(SHARDS)
        while waiting or self._running:
            for shard in waiting:
                command = [sys.executable, "-m", "adt_core"]
                command += words("generate", **self._options, output=self.folder, shard=shard)
                self._running[shard] = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log)
                self._due[shard] = self._count() + self._rng.randint(1, 12 * PROMPTS // 200)
            waiting = [shard for shard in list(self._running) if self._ended(shard)]
            time.sleep(0.01 if PROMPTS < 1000 else 0.2)

    def _count(self) -> int:
        return len(list(self.folder.glob("*"))) if self.folder.exists() else 0

    def _ended(self, shard: str) -> bool:
        """Kill a shard if it is due. Return whether it must be started again."""
        process = self._running[shard]
        if self.kills < KILLS and self._count() >= self._due[shard] and process.poll() is None:
            time.sleep(self._rng.uniform(0, 0.1))
            process.kill()
            self.kills += process.wait() == -9
        if process.poll() is None:
            return False
        assert process.returncode in (0, -9), f"see {self._log.name}"
        return self._running.pop(shard).returncode == -9


def test_killed_shards_equal_an_uninterrupted_run(tmp_path):
    prompts = read_prompts(BUNDLED_CAPTIONS, "all")
    prompts = [prompts[number % len(prompts)] for number in range(PROMPTS)]
    (tmp_path / "list.txt").write_text("\n".join(prompts), encoding="utf-8")
    target = write_tiny_checkpoint(tmp_path / "target", scale=3.0)
    options = {"model": target, "drafter": "jacobi", "method": "adt-tree", "dtype": "float64", "device": "cpu"}
    options |= {"prompts": tmp_path / "list.txt", "batch_size": 1, "invalid_prompts": "truncate"}
    beside = {"tokens": tmp_path / "whole.jsonl", "report": tmp_path / "whole-r.json"}
    single = words("generate", **options, output=tmp_path / "whole", **beside)
    subprocess.run([sys.executable, "-m", "adt_core", *single], cwd=ROOT, check=True)
    shards = Shards(tmp_path, options)
    shards.run()
    assert shards.kills == KILLS
    whole, parts = map(images_of, (tmp_path / "whole", shards.folder))
    assert parts == whole and len(whole) == PROMPTS
    assert cli.main(["merge", str(tmp_path / "t.jsonl"), str(tmp_path / "r.json")]) == 0
    assert read_lines(tmp_path / "t.jsonl") == read_lines(tmp_path / "whole.jsonl")
    merged, single = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "r.json", beside["report"]))
    for name in ("images", "tokens", "target_forwards", "verified_drafts", "seed", "method"):
        assert merged[name] == single[name], name
    assert merged["images"] == PROMPTS


def images_of(folder: Path) -> dict[Path, tuple[list, str]]:
    """Return the tokens and a digest of the pixels of each image in a folder."""
    paths = folder.rglob("*.png")
    return {path.relative_to(folder): (read_settings(path)["tokens"], pixel_digest(path)) for path in paths}
