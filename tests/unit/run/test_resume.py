"""Tests of lists of prompts: resuming, shards, tar files, invalid prompts and the default batch size."""

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from PIL import Image

from adt_core import Drafting, Pipeline, Recipe, cli
from adt_core.app import generate as command
from adt_core.app import progress
from adt_core.app.progress import RunProgress
from adt_core.run import batch_size, store, tars
from adt_core.run.batch_size import default_batch_size
from adt_core.run.images import read_settings
from adt_core.run.jobs import Job, JobList, PromptEntry
from tests.command import read_lines, words
from tests.layouts.families import WRITERS

PROMPTS = ["a cat", "a dog", "a cow", "fog", "a red house", "a tree", "a blue sky"]
TIMES = ("seconds", "drafting_seconds", "prefill_seconds", "tokens_per_second")


@pytest.fixture
def generate(tiny, tmp_path, monkeypatch, capsys):
    """Return a function that runs `generate` with a list and reproducible trees: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    usual = {"model": tiny / "target", "drafter": tiny / "drafter", "prompts": "list.txt", "method": "adt-tree"}
    usual |= {"dtype": "float64", "device": "cpu", "batch_size": 2}

    def run(output, *flags, **given):
        code = cli.main([*words("generate", **usual | {"output": output} | given), *flags])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets a run be interrupted after `count` images: before or after the next is written."""

    def patch(count: int, where: str = "before"):
        write = store.write_in
        written = []

        def interrupted(folder, name, content):
            if where == "after":
                write(folder, name, content)
            if len(written) == count:
                monkeypatch.setattr(store, "write_in", write)
                raise KeyboardInterrupt
            written.append(name)
            if where == "before":
                write(folder, name, content)

        monkeypatch.setattr(store, "write_in", interrupted)

    return patch


def contents(folder):
    """Return the record without durations, and the pixels of each image, by name."""
    found = {}
    for path in sorted(Path(folder).glob("*.png")):
        record = read_settings(path)
        record["figures"] = without_times(record.get("figures", {}))
        with Image.open(path) as image:
            found[path.name] = record, image.tobytes()
    return found


def file_bytes(folder, pattern="*.png"):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob(pattern))}


def without_times(value):
    """Return a report or a line without durations."""
    if isinstance(value, dict):
        omitted = (*TIMES, "drafting", "target_share", "drafter_share", "drafter_forwards")  # depend on the batch
        return {name: without_times(entry) for name, entry in value.items() if name not in omitted}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def options(folder):
    """Return options that write all kinds of lines into a folder."""
    return {"tokens": f"{folder}/t.jsonl", "trace": f"{folder}/trace.jsonl", "report": f"{folder}/r.json"}


# ---- resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupted_list_is_finished_and_equals_an_uninterrupted_one(generate, interrupt, where):
    assert generate("whole", **options("whole"))[0] == 0
    interrupt(3, where)
    assert generate("parts", **options("parts"))[0] == 130
    before = {path: path.stat().st_mtime_ns for path in Path("parts").glob("*.png")}
    assert len(before) == (3 if where == "before" else 4)
    code, out, _ = generate("parts", **options("parts"))
    assert code == 0 and f"{len(before)} of 7 images were already there." in out
    assert {path: path.stat().st_mtime_ns for path in before} == before, "an image was generated twice"
    assert contents("parts") == contents("whole") and len(contents("whole")) == len(PROMPTS)
    for name in ("t.jsonl", "trace.jsonl", "r.jsonl"):
        one, two = (without_times(read_lines(f"{folder}/{name}")) for folder in ("whole", "parts"))
        assert [line["image"] for line in two] == list(range(1, 8)) and one[0]["id"] == "1"
        if name == "t.jsonl":
            assert one == two and [line["prompt"] for line in two] == PROMPTS
        elif name == "trace.jsonl":
            assert [line["acceptance"] for line in one] == [line["acceptance"] for line in two]
    one, two = (json.loads(Path(folder, "r.json").read_text(encoding="utf-8")) for folder in ("whole", "parts"))
    for figure in ("images", "tokens", "tau", "mean_depth", "verified_drafts", "method", "seed"):
        assert one[figure] == pytest.approx(two[figure]), figure
    assert two["seconds"] == pytest.approx(sum(line["seconds"] for line in read_lines("parts/r.jsonl")))


def test_damaged_and_repeated_lines_are_replaced(generate):
    assert generate("a", tokens="t.jsonl")[0] == 0
    whole = Path("t.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = [lines[2], lines[0], b'{"image": 3, "tok\n', b"\xff\n", lines[1], lines[0], *lines[3:]]
    Path("t.jsonl").write_bytes(b"".join(cut) + b'{"image"')
    assert generate("a", tokens="t.jsonl")[0] == 0
    assert Path("t.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "change, named",
    [
        ({"seed": 4}, "seed 0, but this run has 4"),
        ({"temperature": 0.5}, "temperature 0.7, but this run has 0.5"),
        ({"negative_prompt": "fog"}, "negative_prompt"),
    ],
)
def test_images_of_other_settings_are_kept_unless_overwritten(generate, change, named):
    assert generate("a")[0] == 0
    before = contents("a")
    code, out, err = generate("a", **change)
    assert code == 1 and out == "" and err.count("\n") == 1, err
    assert f"--output: '{Path('a', '000001.png')}' was made with" in err and named in err and "--overwrite" in err
    assert contents("a") == before
    assert generate("a", "--overwrite", **change)[0] == 0
    assert generate("b", **change)[0] == 0
    assert contents("a") == contents("b") != before


def test_another_drafter_or_batch_size_continues(generate):
    Path("few.txt").write_text("\n".join(PROMPTS[:3]), encoding="utf-8")
    assert generate("a", prompts="few.txt")[0] == 0
    code, out, _ = generate("a", method="eagle2", depth=2, batch_size=3)
    assert code == 0 and "3 of 7 images were already there." in out


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_foreign_files_are_not_replaced(generate, content):
    Path("a").mkdir()
    if content is None:
        Image.new("RGB", (8, 8)).save("a/000003.png")
    else:
        Path("a/000003.png").write_bytes(content)
    before = file_bytes("a")
    code, _, err = generate("a")
    assert code == 1 and "000003.png' " in err and "--overwrite" in err and file_bytes("a") == before
    assert generate("a", "--overwrite")[0] == 0 and len(contents("a")) == len(PROMPTS)


def test_a_cut_image_is_not_counted_as_present(generate):
    assert generate("a")[0] == 0
    before = contents("a")
    Path("a/000002.png").write_bytes(file_bytes("a")["000002.png"][:-20])
    code, _, err = generate("a")
    assert code == 1 and "000002.png' is damaged" in err
    assert generate("a", "--overwrite")[0] == 0 and contents("a") == before


def test_weights_are_part_of_the_settings(generate, tmp_path):
    from tests.tiny import write_tiny_checkpoint

    assert generate("a", drafter="jacobi", method="auto")[0] == 0
    other = write_tiny_checkpoint(tmp_path / "target", scale=3.0, seed=5)
    code, _, err = generate("a", model=other, drafter="jacobi", method="auto")
    assert code == 1 and "other weights" in err


def test_a_continued_image_is_part_of_the_settings(generate):
    Image.new("RGB", (40, 30), "red").save("red.png")
    Image.new("RGB", (40, 30), "blue").save("blue.png")
    assert generate("a", continue_from="red.png")[0] == 0
    assert "already there" in generate("a", continue_from="red.png")[1]
    code, _, err = generate("a", continue_from="blue.png")
    assert code == 1 and "was made with kept" in err


def test_inputs_in_the_output_folder_are_not_overwritten(generate):
    Path("a").mkdir()
    Image.new("RGB", (40, 30)).save("a/000005.png")
    code, _, err = generate("a", "--overwrite", continue_from="a/000005.png")
    assert code == 2 and "--output" in err and "--continue-from" in err


def test_an_image_without_a_list_is_generated_again(generate):
    usual = {"prompts": None, "prompt": "a cat", "drafter": "jacobi", "tokens": "t.jsonl"}
    assert generate("a.png", **usual)[0] == 0
    first = contents(".")
    assert generate("a.png", **usual, seed=5)[0] == 0
    assert contents(".") != first and [line["seed"] for line in read_lines("t.jsonl")] == [0, 5], "lines are appended"


# ---- shards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_have_all_images_once(count):
    prompts = [PromptEntry(str(number), "a cat") for number in range(7)]
    found = [JobList(prompts, Recipe(), 2, shard=(shard, count)) for shard in range(1, count + 1)]
    assert sorted(job.number for jobs in found for job in jobs) == list(range(1, 15))
    assert {jobs.job(9) for jobs in found} == {Job(9, "a cat", 0, 8, "4", "a cat")}


def test_the_union_of_shards_is_the_complete_list(generate):
    assert generate("whole", **options("whole"), num_images_per_prompt=2)[0] == 0
    for shard in ("3/3", "1/3", "2/3"):
        code, out, _ = generate("parts", **options("parts"), num_images_per_prompt=2, shard=shard)
        assert code == 0 and "already there" not in out
    assert contents("parts") == contents("whole") and len(contents("parts")) == 14
    assert [line["image"] for line in read_lines("parts/t-2-of-3.jsonl")] == [2, 5, 8, 11, 14]
    assert len(json.loads(Path("parts/r-2-of-3.json").read_text(encoding="utf-8"))) > 10
    code, out, _ = generate("parts", **options("parts"), num_images_per_prompt=2)
    assert code == 0 and "14 of 14 images were already there." in out and "have no lines" not in out
    one, two = (json.loads(Path(folder, "r.json").read_text(encoding="utf-8")) for folder in ("whole", "parts"))
    for figure in ("images", "tokens", "tau", "verified_drafts"):
        assert one[figure] == pytest.approx(two[figure])


def test_shards_are_merged_without_a_model(generate, monkeypatch, capsys):
    """Also merge twice, and with a damaged line."""
    assert generate("whole", **options("whole"), batch_size=1)[0] == 0
    for number in (1, 2, 3):
        assert generate("out", shard=f"{number}/3", **options("out"), batch_size=1)[0] == 0
    with open("out/t-2-of-3.jsonl", "a", encoding="utf-8") as file:
        file.write('{"image": 5, "toke')
    monkeypatch.setattr("adt_core.models.load.load_target", None)
    for _ in range(2):
        assert cli.main(["merge", "out/t.jsonl", "out/trace.jsonl", "out/r.json"]) == 0
        assert "out/r.json: 7 images from" in capsys.readouterr().out
        assert read_lines("out/t.jsonl") == read_lines("whole/t.jsonl")
        assert without_times(read_lines("out/r.jsonl")) == without_times(read_lines("whole/r.jsonl"))
        reports = [without_times(read_lines(f"{folder}/r.json")[0]) for folder in ("out", "whole")]
        assert reports[0] == reports[1] and reports[0]["images"] == 7


@pytest.mark.parametrize(
    "given, problem",
    [
        ("none.jsonl", "--path: there is no 'none.jsonl'"),
        ("list.txt", "'list.txt' has other content than lines of images"),
        ("out", "'out' contains no benchmark"),
        ("r.json", "'r.jsonl' has images of 2 different settings"),
    ],
)
def test_what_cannot_be_merged(generate, capsys, given, problem):
    assert generate("out", shard="1/7", report="r.json")[0] == 0
    assert generate("other", shard="1/7", report="r.json", temperature=0.5)[0] == 0
    assert cli.main(["merge", given]) != 0
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "+1/3", "1/99999999999"])
def test_invalid_shards(generate, shard):
    code, _, err = generate("a", shard=shard)
    assert code == 2 and "--shard is" in err and not Path("a").exists()


def test_a_shard_without_images_is_reported(generate):
    code, out, err = generate("a", shard="8/9")
    assert code == 0 and "Shard 8 of 9 has no images" in out and "nothing to do" in out, err


# ---- invalid prompts -----------------------------------------------------------------------------------------------


def test_invalid_prompts_do_not_end_the_run(generate):
    Path("list.txt").write_text("a cat\n\n" + "long " * 100 + "\na dog\n", encoding="utf-8")
    code, out, err = generate("a", report="r.json")
    assert code == 0 and sorted(contents("a")) == ["000001.png", "000003.png"], err
    assert "blank" not in out, "a blank line is no prompt"
    assert "Prompt '3', 'long long" in out and "left out: Prompt too long" in out
    assert json.loads(Path("r.json").read_text(encoding="utf-8"))["images"] == 2
    code, out, _ = generate("a")
    assert code == 0 and "left out: Prompt too long" in out and "2 of 3 images were already there." in out


def test_long_prompts_can_be_truncated(generate):
    long = "a cat " + "long " * 100
    Path("list.txt").write_text(f"a cow\n{long}\n", encoding="utf-8")
    code, out, _ = generate("a", invalid_prompts="truncate")
    assert code == 0 and "truncated" in out.lower()
    saved = read_settings(Path("a/000002.png"))
    assert long.startswith(saved["prompt"]) and saved["caption"] == long.strip()
    assert "2 of 2 images were already there." in generate("a", invalid_prompts="truncate")[1]
    assert "2 of 2 images were already there." in generate("a", invalid_prompts="skip")[1]


def test_a_list_without_valid_prompts_is_an_error(generate):
    Path("list.txt").write_text("long " * 100, encoding="utf-8")
    code, _, err = generate("a")
    assert code == 1 and "--prompts: no prompt of the list can be drawn" in err and not contents("a")


def test_rows_have_settings_of_their_own(generate, capsys):
    """Each image equals that image of a command with these settings. A changed cell is another image."""
    rows = ["prompt,seed,guidance_scale,negative_prompt", "a cat,4,,", "a dog,,2.5,", "a cat,4,3,fog", "a cow,,,fog"]
    Path("list.csv").write_text("\n".join(rows), encoding="utf-8")
    assert generate("out", prompts="list.csv", guidance_scale=3, tokens="t.jsonl", shard="1/2")[0] == 0
    assert generate("out", prompts="list.csv", guidance_scale=3, **options("out"))[0] == 0
    records = [record for record, _ in contents("out").values()]
    assert [record["guidance_scale"] for record in records] == [3, 2.5, 3, 3]
    assert [record["negative_prompt"] for record in records] == ["", "", "fog", "fog"]
    assert len({record["settings_key"] for record in records}) == 3
    settings = {"seed": 4}, {"guidance_scale": 2.5}, {"seed": 4, "negative_prompt": "fog"}, {"negative_prompt": "fog"}
    for number, given in enumerate(settings):
        single = {"prompts": None, "prompt": rows[number + 1].partition(",")[0], "tokens": f"{number}.jsonl"}
        usual = {"guidance_scale": 3, "image_index": 0 if "seed" in given else number}
        assert generate(f"{number}.png", **single, **usual | given)[0] == 0
        assert read_lines(f"{number}.jsonl")[0]["tokens"] == records[number]["tokens"]
    code, out, _ = generate("out", prompts="list.csv", guidance_scale=3, **options("out"))
    assert code == 0 and "4 of 4 images were already there." in out
    assert [line["image"] for line in read_lines("out/t.jsonl")] == [1, 2, 3, 4]
    Path("list.csv").write_text("\n".join(rows).replace("2.5", "2.6"), encoding="utf-8")
    code, _, err = generate("out", prompts="list.csv", guidance_scale=3)
    assert code == 1 and "000002.png' was made with guidance_scale 2.5, but this run has 2.6" in err
    Path("list.csv").write_text("prompt,size\na cat,33x33", encoding="utf-8")
    code, _, err = generate("sized", prompts="list.csv")
    assert code != 0 and "--prompts: in the row of '1', --size is 33x33" in err and not Path("sized").exists()


def test_rows_have_sizes_of_their_own(generate, tmp_path, interrupt):
    """The images of a size share batches, and an interrupted list is continued."""
    model = WRITERS["emu3"](tmp_path / "models")
    rows = ["prompt,size", "a cat,48x40", "a dog,", "a cow,48x40", "fog,40 x 48"]
    Path("list.csv").write_text("\n".join(rows), encoding="utf-8")
    given = {"model": model, "drafter": "jacobi", "size": "40x48", "prompts": "list.csv", "guidance_scale": 1}
    interrupt(2)
    assert generate("out", **given)[0] == 130
    assert generate("out", **given, **options("out"))[0] == 0
    found = {}
    for number in (1, 2, 3, 4):
        with Image.open(f"out/{number:06}.png") as image:
            found[number] = image.size
    assert found == {1: (48, 40), 2: (40, 48), 3: (48, 40), 4: (40, 48)}
    alone = {**given, "size": "48x40", "prompts": None, "prompt": "a cow", "image_index": 2, "tokens": "alone.jsonl"}
    assert generate("alone.png", **alone)[0] == 0
    assert read_lines("alone.jsonl")[0]["tokens"] == read_lines("out/t.jsonl")[2]["tokens"]


def test_many_invalid_prompts_are_counted(generate, monkeypatch):
    monkeypatch.setattr(command, "MAX_LISTED", 2)
    Path("list.txt").write_text("a cat\n" + ("long " * 100 + "\n") * 5, encoding="utf-8")
    code, out, _ = generate("a")
    assert code == 0 and out.count("left out: Prompt too long") == 2 and "3 more prompts were left out." in out


# ---- tar files -----------------------------------------------------------------------------------------------------


def samples(folder):
    """Return all samples of the tars in the index, read by WebDataset."""
    wds = pytest.importorskip("webdataset")
    index = json.loads(Path(folder, "index.json").read_text(encoding="utf-8"))
    paths = [str(Path(folder, shard["url"])) for shard in index["shardlist"]]
    found = list(wds.WebDataset(paths, shardshuffle=False).decode())
    assert len(found) == sum(shard["nsamples"] for shard in index["shardlist"])
    return {sample["__key__"]: sample for sample in found}


def packed(folder):
    """Return the tokens of each sample, and the names of all files of a folder."""
    found = {key: (sample["json"]["prompt"], sample["tokens.npy"].tolist()) for key, sample in samples(folder).items()}
    return found, sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def small_tars(monkeypatch):
    monkeypatch.setattr(tars, "TAR_SIZE", 3)


def test_a_list_is_written_as_tars(generate, small_tars):
    assert generate("pngs", tokens="t.jsonl")[0] == 0
    assert generate("tars", format="webdataset")[0] == 0
    names = sorted(path.name for path in Path("tars").iterdir())
    assert names == ["00000.tar", "00001.tar", "00002.tar", "index.json"]
    found = samples("tars")
    grids = {line["image"]: line["tokens"] for line in read_lines("t.jsonl")}
    assert sorted(found) == [f"{number:06}" for number in range(1, 8)]
    for number, prompt in enumerate(PROMPTS, start=1):
        sample = found[f"{number:06}"]
        assert sample["json"]["prompt"] == prompt and sample["json"]["id"] == str(number)
        assert sample["tokens.npy"].tolist() == grids[number]
    with tarfile.open("tars/00001.tar") as tar, Image.open("pngs/000004.png") as image:
        with Image.open(tar.extractfile("000004.png")) as packed_image:
            assert packed_image.tobytes() == image.tobytes() and image.size == (32, 32)
    before = file_bytes("tars", "*")
    code, out, _ = generate("tars", format="webdataset")
    assert code == 0 and "7 of 7 images were already there." in out and file_bytes("tars", "*") == before


@pytest.mark.parametrize("moment", ["png", "tar", "renamed", "deleted"])
def test_a_tar_is_complete_or_absent(generate, interrupt, small_tars, monkeypatch, moment):
    """Interrupt a run before a PNG, within a tar, after a tar has its name, and while its PNGs are deleted."""
    assert generate("whole", format="webdataset")[0] == 0
    with monkeypatch.context() as patch:
        if moment == "png":
            interrupt(4)
        elif moment == "tar":
            patch.setattr(tars, "read_settings", stopping(tars.read_settings, 2))
        elif moment == "renamed":
            patch.setattr(tars, "write_in", stopping(tars.write_in, 1))
        else:
            patch.setattr(tars.TarStore, "_delete", stopping(tars.TarStore._delete, 2))
        assert generate("tars", format="webdataset")[0] == 130
    for path in Path("tars").glob("*.tar"):
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) == 9
    assert generate("tars", format="webdataset")[0] == 0
    assert packed("tars") == packed("whole")


def stopping(function, count):
    """Return a function that is interrupted at its `count`-th call."""
    calls = []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == count:
            raise KeyboardInterrupt
        return function(*arguments)

    return stopped


def test_shards_and_longer_lists_add_tars(generate, small_tars):
    Path("few.txt").write_text("\n".join(PROMPTS[:4]), encoding="utf-8")
    assert generate("tars", format="webdataset", prompts="few.txt")[0] == 0
    for shard in ("1/2", "2/2"):
        assert generate("tars", format="webdataset", shard=shard)[0] == 0
    assert sorted(samples("tars")) == [f"{number:06}" for number in range(1, 8)]
    names = sorted(path.name for path in Path("tars").glob("*.tar"))
    assert names == ["00000.tar", "00001.tar", "1-of-2-00000.tar", "1-of-2-00001.tar", "2-of-2-00000.tar"][: len(names)]


def test_images_of_long_lists_are_in_subfolders(generate, interrupt):
    """The name of an image depends only on its number, so a longer list continues a shorter one."""
    Path("list.txt").write_text("a cat\n" * 12_500, encoding="utf-8")
    assert generate("out", shard="9999/12500")[0] == 0
    assert generate("out", shard="10000/12500", report="r.json")[0] == 0
    assert generate("out", shard="12345/12500", tokens="t.jsonl")[0] == 0
    paths = {path.relative_to("out").as_posix() for path in Path("out").rglob("*.png")}
    assert paths == {"009999.png", "010/010000.png", "012/012345.png"}
    code, out, _ = generate("out", shard="12345/12500")
    assert code == 0 and "1 of 1 images were already there." in out
    code, _, err = generate("out", shard="12345/12500", seed=3)
    assert code == 1 and "012345.png' was made with seed 0" in err
    interrupt(0, "after")  # the image is written, and its tar isn't
    assert generate("tars", shard="12345/12500", format="webdataset")[0] == 130
    assert Path("tars/012/012345.png").exists()
    assert generate("tars", shard="12345/12500", format="webdataset")[0] == 0
    assert list(samples("tars")) == ["012345"]
    assert sorted(path.name for path in Path("tars").iterdir()) == ["12345-of-12500-00000.tar", "index.json"]


def test_tars_of_other_settings_are_kept_unless_overwritten(generate, small_tars):
    assert generate("tars", format="webdataset")[0] == 0
    before = file_bytes("tars", "*.tar")
    whole = packed("tars")
    code, _, err = generate("tars", format="webdataset", seed=3)
    assert code == 1 and "00000.tar' has an image that was made with seed 0" in err
    Path("tars/00000.tar").write_bytes(before["00000.tar"][:2000])
    code, _, err = generate("tars", format="webdataset")
    assert code == 1 and "00000.tar' is damaged" in err
    assert generate("tars", "--overwrite", format="webdataset")[0] == 0
    assert packed("tars") == whole


def test_tars_need_the_library_and_a_folder(generate, monkeypatch):
    code, _, err = generate("a.png", format="webdataset")
    assert code == 2 and "--output: 'a.png' is the name of an image; name a folder" in err
    monkeypatch.setattr(tars.importlib.util, "find_spec", lambda name: None)
    code, _, err = generate("a", format="webdataset")
    assert code == 2 and "-m pip install webdataset" in err


# ---- batch size and progress ---------------------------------------------------------------------------------------


def test_the_default_batch_size_fits_into_the_free_memory(models, monkeypatch):
    pipeline = Pipeline(models[0], Recipe(drafting=Drafting("no-drafting")))
    assert default_batch_size(pipeline, PROMPTS) == batch_size.CPU_BATCH_SIZE == 8
    required = batch_size.required_bytes(pipeline.decoding(["a red house"] * 4).request, 2)
    for factor, expected in ((1.01, 2), (0.99, 1), (1e-6, 1)):
        free = SimpleNamespace(available=factor * required / batch_size.MEMORY_SHARE)
        monkeypatch.setattr(batch_size.psutil, "virtual_memory", lambda free=free: free)
        monkeypatch.setattr(batch_size, "cpu_memory_shortage", lambda *_: "")
        assert default_batch_size(pipeline, ["a red house"]) == expected
    assert default_batch_size(pipeline, ["long " * 100]) == 8, "without a valid prompt, the memory does not matter"


def test_the_limit_of_the_process_counts_if_the_free_memory_is_unknown(models, monkeypatch):
    """In some containers, the files of the system can't be read."""
    pipeline = Pipeline(models[0], Recipe(drafting=Drafting("no-drafting")))
    required = batch_size.required_bytes(pipeline.decoding(["a red house"] * 4).request, 2)
    limit = SimpleNamespace(bytes=1.01 * required / batch_size.MEMORY_SHARE)
    monkeypatch.setattr(batch_size.psutil, "virtual_memory", Mock(side_effect=OSError))
    monkeypatch.setattr(batch_size, "memory_limit", lambda: limit)
    monkeypatch.setattr(batch_size, "cpu_memory_shortage", lambda *_: "")
    assert default_batch_size(pipeline, ["a red house"]) == 2


def test_a_list_is_decoded_in_batches_by_default(generate, monkeypatch):
    sizes = []
    decoding = Pipeline.decoding

    def recorded(pipeline, prompts, indices=None, batch_size=None, *more, **options):
        sizes.extend([batch_size] if batch_size else [])
        return decoding(pipeline, prompts, indices, batch_size, *more, **options)

    monkeypatch.setattr(Pipeline, "decoding", recorded)
    assert generate("a", batch_size=None)[0] == 0
    assert sizes == [7], "at most 8 images on a CPU, and the list has 7"
    assert generate("b")[0] == 0
    assert contents("a") == contents("b"), "the batch size must not change files or their order"


def test_progress_in_a_log_file(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with RunProgress(100, 16, is_list=True, present=20) as running:
        for _ in range(90):
            now[0] += 2
            running.update(16, 1, 0)
        running.update(0, 0, 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "50 of 120 images, 30.0 images per minute, 02:20 left",
        "80 of 120 images, 30.0 images per minute, 01:20 left",
        "110 of 120 images, 30.0 images per minute, 00:20 left",
    ]
    assert running.line() == "110 of 120 images, 30.0 images per minute, 00:14 left, 3 left out"


def test_a_list_of_one_prompt_is_resumed(generate):
    Path("list.txt").write_text("a cat", encoding="utf-8")
    assert generate("a")[0] == 0 and Path("a/000001.png").exists()
    assert "1 of 1 images were already there." in generate("a")[1]
