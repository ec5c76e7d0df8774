"""Tests of the files beside the images of a list: nothing of the user's, and no earlier result, may be lost.

These are prompts, tokens, traces, reports and the index of tars.
"""

import csv
import errno
import io
import json
import os
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest
from filelock import FileLock

from adt_core import cli, files
from adt_core.recipe import Recipe
from adt_core.run import lines
from adt_core.run.folder_lock import FolderLock
from adt_core.run.jobs import JobList, PromptEntry
from adt_core.run.lines import ImageLines
from adt_core.run.store import clashing_images
from tests.command import read_lines, words
from tests.raising import raises_key

PROMPTS = ["a cat", "a dog", "a cow", "fog"]
NO_INDEX = "index.json' is not an index of this pack"


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch, capsys):
    """Return a function that runs `generate` with a list. It returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    usual = {"model": tiny / "target", "drafter": "jacobi", "prompts": "list.txt", "output": "out"}
    usual |= {"dtype": "float64", "device": "cpu", "method": "adt-tree", "batch_size": 2}

    def run(*flags, **given):
        code = cli.main([*words("generate", **usual | given), *flags])
        return code, *capsys.readouterr()

    return run


def report(name="r.json"):
    return json.loads(Path(name).read_text(encoding="utf-8"))


# ---- outputs never replace inputs or foreign files ------------------------------------------------------------------


@pytest.mark.parametrize(
    "listed, options",
    [
        ("t-1-of-2.jsonl", {"tokens": "t.jsonl", "shard": "1/2"}),
        ("t-1-of-2.jsonl", {"trace": "t.jsonl", "shard": "1/2"}),
        ("t-1-of-2.jsonl", {"report": "t.json", "shard": "1/2"}),
        ("t-1-of-2.json", {"report": "t.json", "shard": "1/2"}),
        ("out/index.json", {"format": "webdataset"}),
        ("out/00000.tar", {"format": "webdataset"}),
        ("out/000002.png", {}),
    ],
)
def test_no_output_replaces_the_list(generate, listed, options):
    Path("out").mkdir()
    content = json.dumps(PROMPTS) if listed.endswith("json") else "\n".join(json.dumps(text) for text in PROMPTS)
    Path(listed).write_text(content, encoding="utf-8")
    code, _, err = generate(prompts=listed, **options)
    assert code == 2 and "would be overwritten" in err, err
    assert Path(listed).read_text(encoding="utf-8") == content


def test_a_report_is_not_the_index(generate):
    code, _, err = generate(format="webdataset", report="out/index.json")
    assert code == 2 and "would be overwritten" in err


# ---- lines ---------------------------------------------------------------------------------------------------------


def test_lines_of_other_settings_stay(generate):
    assert generate(tokens="t.jsonl")[0] == 0
    first = read_lines("t.jsonl")
    assert generate(tokens="t.jsonl", seed=3, output="other")[0] == 0
    lines = read_lines("t.jsonl")
    assert lines[: len(first)] == first and [line["seed"] for line in lines[len(first) :]] == [3] * 4
    Path("list.txt").write_text("a cat\n", encoding="utf-8")
    assert generate(tokens="t.jsonl", output="third")[0] == 0
    kept = read_lines("t.jsonl")
    assert sorted(map(json.dumps, kept)) == sorted(map(json.dumps, lines)), "a shorter list deletes no lines"


@pytest.mark.parametrize(
    "path, content, options, problem",
    [
        ("notes.txt", "my notes\n", {"tokens": "notes.txt"}, "--tokens: 'notes.txt' has other content than lines of"),
        ("out/manifest.csv", "mine", {}, "manifest.csv' is not a manifest of this pack"),
        *(("out/index.json", content, {"format": "webdataset"}, NO_INDEX) for content in ['{"mine": 1}', "{", "[1]"]),
        ("out/index.json", "[" * 10**5, {"format": "webdataset"}, NO_INDEX),
    ],
    ids=["lines", "manifest", "index", "damaged index", "list as an index", "deep index"],
)
def test_foreign_and_damaged_files_are_not_replaced(generate, path, content, options, problem):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(content, encoding="utf-8")
    before = sorted(Path().rglob("*"))
    code, _, err = generate(**options)
    assert code == 2 and problem in err
    assert Path(path).read_text(encoding="utf-8") == content and sorted(Path().rglob("*")) == before


def test_lines_that_a_run_did_not_write_come_from_the_images(generate):
    assert generate()[0] == 0
    code, out, _ = generate(tokens="t.jsonl", trace="trace.jsonl", report="r.json")
    assert code == 0 and "4 of 4 images were already there." in out
    assert "For 4 images of earlier runs, the file of" in out, "a trace can't be made later"
    assert [line["image"] for line in read_lines("t.jsonl")] == [1, 2, 3, 4]
    assert [line["prompt"] for line in read_lines("r.jsonl")] == PROMPTS


def test_a_full_disk_loses_no_image_and_leaves_no_partial_line(generate, monkeypatch):
    append = files._append

    def full(path, content):
        with open(path, "ab") as file:
            file.write(content[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_append", full)
    code, _, err = generate(trace="t.jsonl")
    assert code == 1 and "the disk is full" in err
    assert len(list(Path("out").glob("*.png"))) == 1, "the image is stored although its line could not be"
    monkeypatch.setattr(files, "_append", append)
    code, out, _ = generate(trace="t.jsonl")
    assert code == 0 and "1 of 4 images were already there." in out


def test_lines_of_another_process_are_not_lost_while_a_file_is_sorted(tmp_path, monkeypatch):
    """A process with another list appends while this one has read the file, and has not replaced it yet."""
    path = tmp_path / "t.jsonl"
    jobs = JobList([PromptEntry(str(number), "a cat") for number in (1, 2)], Recipe())
    own, other = (ImageLines(path, jobs, lambda job, key=key: {"settings_key": key}) for key in ("own", "other"))
    for number in (2, 1):
        own.append(jobs.job(number), {})
    thread = Thread(target=other.append, args=(jobs.job(1), {}))

    def replace(path, fill):
        thread.start()
        thread.join(0.5)
        files.write_with(path, fill)

    monkeypatch.setattr(lines, "write_with", replace)
    own.finish()
    thread.join()
    other.finish()
    found = [(line["settings_key"], line["image"]) for line in read_lines(path)]
    assert sorted(found) == [("other", 1), ("own", 1), ("own", 2)]
    assert [file.name for file in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.skipif(os.name == "nt", reason="needs os.write")
def test_an_interrupted_append_is_cut_back(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    files.add_line(path, "{}")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with raises_key("file.disk_full"):
            files.add_line(path, '{"a": 1}')
    assert path.read_bytes() == b"{}\n"


# ---- reports -------------------------------------------------------------------------------------------------------


def test_a_report_covers_all_images_of_the_list(generate):
    Path("few.txt").write_text("\n".join(PROMPTS[:3]), encoding="utf-8")
    assert generate(prompts="few.txt")[0] == 0
    code, out, _ = generate(report="r.json")
    assert code == 0 and "3 of 4 images were already there." in out
    first = report()
    assert first["images"] == 4 and first["tokens"] == 4 * 16 and first["seconds"] > 0 and first["tau"] > 1
    assert generate(report="again.json")[0] == 0
    assert report("again.json") == first


def test_overwrite_generates_all_images_again(generate):
    assert generate()[0] == 0
    before = {path: path.stat().st_mtime_ns for path in Path("out").glob("*.png")}
    code, out, _ = generate("--overwrite")
    assert code == 0 and "already there" not in out
    assert all(path.stat().st_mtime_ns > time for path, time in before.items()) and len(before) == 4


def test_a_comparison_reports_only_what_it_measured(generate):
    Path("few.txt").write_text("\n".join(PROMPTS[:2]), encoding="utf-8")
    assert generate(prompts="few.txt")[0] == 0
    code, _, err = generate("--compare", report="r.json")
    assert code == 1 and "--compare: image 1 of the list was generated without a comparison" in err
    assert not Path("r.json").exists() and len(list(Path("out").glob("*.png"))) == 2
    code, out, _ = generate("--compare", "--overwrite", report="r.json")
    assert code == 0 and "tokens identical" in out and report()["identical_images"] == 4
    code, out, _ = generate("--compare", report="again.json")
    assert code == 0 and report("again.json")["speedup"] == report()["speedup"]


# ---- shards --------------------------------------------------------------------------------------------------------


def test_a_shard_with_only_invalid_prompts_succeeds(generate):
    Path("list.txt").write_text("a cat\n" + "long " * 100, encoding="utf-8")
    code, out, _ = generate(shard="2/2")
    assert code == 0 and "left out: Prompt too long" in out


def test_two_processes_do_not_pack_the_same_tars(generate):
    Path("out").mkdir()
    with FileLock("out/.adt-tree-1-of-1.lock"):
        code, _, err = generate(format="webdataset")
        assert code == 1 and "another process is writing to 'out'" in err
    assert generate(format="webdataset")[0] == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["00000.tar", "index.json"]


def test_a_released_lock_never_deletes_the_lock_of_another_process(tmp_path, monkeypatch):
    """Another process takes the lock at the moment of the release."""
    lock = FolderLock(tmp_path, "lock")
    other = FolderLock(tmp_path, "lock")
    lock.take()
    lock.take()  # a store that is asked twice for its missing images
    release = lock._lock.release

    def handed_over(**options):
        release(**options)
        other.take()

    monkeypatch.setattr(lock._lock, "release", handed_over)
    lock.release()
    assert (tmp_path / "lock").exists()
    with raises_key("folder.locked"):
        FolderLock(tmp_path, "lock").take()
    other.release()
    assert list(tmp_path.iterdir()) == []


# ---- manifest ------------------------------------------------------------------------------------------------------


def test_shards_write_a_manifest_of_the_complete_list(generate):
    """It names the image of each row, also those of the other shards, whose texts no spreadsheet runs as a formula."""
    Path("list.csv").write_text("id,prompt,seed\na/1,a cat,7\nb,=1+1,\n", encoding="utf-8")
    for shard in ("1/2", "2/2"):
        assert generate(prompts="list.csv", shard=shard, seed=3)[0] == 0
        with Path("out/manifest.csv").open(newline="", encoding="utf-8-sig") as file:
            assert list(csv.DictReader(file)) == [
                {"file": "000001.png", "id": "a/1", "prompt": "a cat", "seed": "7"},
                {"file": "000002.png", "id": "b", "prompt": "'=1+1", "seed": "3"},
            ]


def test_a_manifest_that_is_the_list_is_not_replaced(generate):
    assert generate()[0] == 0
    code, _, err = generate(prompts="out/manifest.csv")
    assert code == 2 and "is the file of --prompts, which would be overwritten" in err


# ---- seeds of a list -----------------------------------------------------------------------------------------------


def test_seeds_of_a_list_are_used(generate):
    Path("list.csv").write_text("prompt,seed\na cat,7\na cat,\na cat,\n", encoding="utf-8")
    assert generate(prompts="list.csv", tokens="t.jsonl", seed=3)[0] == 0
    lines = read_lines("t.jsonl")
    assert [(line["seed"], line["image_index"]) for line in lines] == [(7, 0), (3, 1), (3, 2)]
    assert len({json.dumps(line["tokens"]) for line in lines}) == 3
    alone = {"prompts": None, "prompt": "a cat", "output": "a.png", "tokens": "one.jsonl"}
    for line in lines:
        assert generate(**alone, seed=line["seed"], image_index=line["image_index"])[0] == 0
        assert read_lines("one.jsonl")[-1]["tokens"] == line["tokens"]


def test_the_same_noise_for_all_prompts_on_request(generate):
    Path("list.txt").write_text("a cat\na cat\n", encoding="utf-8")
    assert generate("--same-noise", tokens="t.jsonl")[0] == 0
    one, two = read_lines("t.jsonl")
    assert one["tokens"] == two["tokens"] and one["image_index"] == two["image_index"] == 0


# ---- odd names and contents -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["tokens", "trace", "report"])
@pytest.mark.parametrize("shard", ["1/1", "1/2"])
def test_a_file_without_a_name_is_refused(generate, option, shard):
    code, _, err = generate(**{option: ".", "shard": shard})
    assert code == 2 and f"--{option}: '.' is a folder; name a file." in err and len(err.splitlines()) == 1


def test_remarks_on_odd_prompts_are_printed(generate):
    Path("list.txt").write_text("a (red house:1.3)\na dog\na \u200bcow", encoding="utf-8")
    code, out, _ = generate()
    assert code == 0 and "contains a weight such as (text:1.3)" in out and "contains invisible characters" in out
    code, out, _ = generate(prompts=None, prompt="a (red house:1.3)", output="one.png")
    assert code == 0 and "contains a weight such as (text:1.3)" in out


def test_results_name_no_folder_of_the_machine(generate, tiny):
    """Reports and images are published, and folders can contain the name of a user."""
    options = {"drafter": tiny / "drafter", "report": "r.json", "trace": "t.jsonl", "tokens": "k.jsonl"}
    assert generate(**options)[0] == 0
    files = [*Path().glob("*.json*"), *Path("out").glob("*.png")]
    assert len(files) == 4 + len(PROMPTS)
    for file in files:
        assert str(tiny).encode() not in file.read_bytes(), file
    assert report()["model"] == "target" and report()["drafter"] == "drafter"


def test_a_line_that_has_become_longer_is_not_read_completely(tmp_path):
    """Another process can change a file between the search for lines and the copy."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 2**20)
    copied = io.BytesIO()
    lines._copy([lines._Place(path, 0, 3), lines._Place(path, 3, 3)], copied)
    assert copied.getvalue() == b"{}\nxxx"


def test_the_tar_of_a_shorter_list_is_not_replaced(generate):
    assert generate(format="webdataset")[0] == 0
    first = Path("out/00000.tar").read_bytes()
    Path("list.txt").write_text("\n".join([*PROMPTS, "a boat"]), encoding="utf-8")
    code, _, err = generate(format="webdataset")
    assert code == 0, err
    assert Path("out/00000.tar").read_bytes() == first and Path("out/00001.tar").is_file()
    tars = json.loads(Path("out/index.json").read_text(encoding="utf-8"))["shardlist"]
    assert [(tar["url"], tar["nsamples"]) for tar in tars] == [("00000.tar", 4), ("00001.tar", 1)]


def test_lines_that_can_not_be_read_are_an_error_with_a_remedy(tmp_path, monkeypatch):
    jobs = JobList([PromptEntry("1", "a cat")], Recipe())
    written = ImageLines(tmp_path / "t.jsonl", jobs, lambda job: {})
    written.append(jobs.job(1), {"tokens": []})
    monkeypatch.setattr(lines, "bounded_lines", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with raises_key("lines.unreadable", path="t.jsonl"):
        written.finish()


def test_files_with_numbers_above_the_lists_are_no_images_of_it(tmp_path):
    """A prompt list with such a name in the folder of the images is not replaced by an image."""
    others = [tmp_path / "000002.png", tmp_path / "000009.png", tmp_path / "000000.png"]
    assert [path.name for path in clashing_images(tmp_path, 3, others)] == ["000001.png", "000002.png"]
