"""Tests of prompt lists in a running ComfyUI.

A list can be processed by a loop of stock nodes, or by the Batch Sampler, which can be stopped and resumed.
"""

import csv
import json
import re
import uuid
from pathlib import Path

import numpy as np
import pytest
from adt_tree_pack.nodes.contact_sheet import COLUMNS
from comfy_server import Failed
from messages import PREVIEWS, TEXT, Message, lines_under
from PIL import Image
from small import SMALL, TINY, with_small_models, write_captions
from test_cancel import interrupt_and_time

TEXT_BELOW = "(the text below)"  # value of the input *file* that selects the typed prompts
COUNT = 10  # number of captions in the batch
SHEET = 4  # thumbnails per row of the contact sheet


@pytest.fixture
def coco(comfy):
    return write_captions(comfy.base, COUNT)


@pytest.fixture
def batch(template, coco):
    graph = with_small_models(template("ADT-Tree batch of prompts with report"))
    return graph.set("ADTTreePrompts", file=coco[0], count=COUNT)


@pytest.mark.smoke
def test_cancelled_batch_resumes_without_losing_images(comfy, batch):
    """This is the short version of the next test, for the default tier."""
    captions = [f"{colour} fox" for colour in ("a red", "a blue", "a green", "a grey")]
    name = uuid.uuid4().hex[:8]
    batch.set("ADTTreePrompts", file=TEXT_BELOW, text="\n".join(captions), count=0)
    batch.set("ADTTreeModelLoader", model=TINY).set("ADTTreeBatchSampler", folder=f"My {name}", seed=43, batch_size=2)
    _, line = cancel_batch(comfy, batch.prompt, batch.id("ADTTreeBatchSampler"))
    (folder,) = comfy.base.glob(f"output/adt_tree_batches/My-{name}-*")
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    assert 2 <= len(kept) < len(captions)
    where = f"They are in output/adt_tree_batches/{folder.name}."
    assert line == f"{len(kept)} of 4 images kept. Press Run to continue. {where}"
    comfy.run(batch.prompt)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "an image was made twice"
    rows = report_of(folder)["images"]
    assert [row["prompt"] for row in rows] == captions
    assert {row["file"] for row in rows} == {path.name for path in folder.glob("*.png")} - {"report.png"}


@pytest.mark.small_models
def test_batch_resumes_after_cancelling_with_other_drafts(comfy, batch, graph, coco):
    """No image may be lost or generated twice. Table and contact sheet must be complete."""
    captions = coco[1]
    seed = 41

    before = {*comfy.base.glob("output/adt_tree_batches/*")}
    sampler = batch.set("ADTTreeBatchSampler", seed=seed, seed_mode="same", batch_size=4).id("ADTTreeBatchSampler")
    length = cancel_batch(comfy, batch.prompt, sampler)[0] // COUNT
    (folder,) = {*comfy.base.glob("output/adt_tree_batches/*")} - before
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    assert 2 <= len(kept) < COUNT and not list(folder.glob("report.*"))

    # Neither the drafter nor the batch size changes the images.
    jacobi = batch.add("ADTTreeDrafterLoader", model=batch.link("ADTTreeModelLoader"), drafter="jacobi")
    batch.set("ADTTreeBatchSampler", batch_size=5, drafter=jacobi)
    batch.add("PreviewImage", images=batch.link("ADTTreeBatchReport"))
    saved, _ = batch.add("SaveImage", images=batch.link("ADTTreeBatchSampler"), filename_prefix=uuid.uuid4().hex)
    outputs, messages = comfy.watch(batch.prompt)
    check_progress(messages, sampler, length, len(kept))
    assert {*comfy.base.glob("output/adt_tree_batches/*")} - before == {folder}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "an image was made twice"
    with Image.open(next(iter(kept))) as one:
        assert json.loads(one.info["adt_tree"])["seed"] == seed
        assert json.loads(one.info["prompt"])[sampler]["inputs"]["seed"] == seed, "the file contains its graph"
    table = check_table(folder, captions, seed, length)
    assert {file["filename"] for file in outputs[sampler]["images"]} == {line["file"] for line in table}
    report = report_of(folder)
    assert [Path(image["drafter"]).name for image in report["images"]].count(SMALL) == len(kept)
    assert report["summary"]["images"] == COUNT
    with Image.open(folder / "report.png") as one:
        assert json.loads(one.info["prompt"])[sampler]["inputs"]["batch_size"] == 5, "the sheet contains its graph"
    check_sheet(*comfy.images(outputs, batch.id("ADTTreeBatchReport"), batch.id("PreviewImage")))
    # The first image was made before the cancellation, the last one after it.
    check_first_and_last(comfy, graph, list(captions.values()), seed, comfy.images(outputs, saved))


def cancel_batch(comfy, prompt: dict, sampler: str) -> tuple[int, str]:
    """Cancel a batch after its second image. Return its number of tokens, and the last line under the node."""
    with comfy.socket() as browser:
        prompt_id = comfy.queue(prompt, browser.id)
        first = browser.wait_for(lambda m: m.type == "progress" and m.data["node"] == sampler)
        browser.wait_for(lambda m: m.type == TEXT and finished_images(m.data) >= 2)
        interrupt_and_time(comfy, browser, prompt_id)
        return first.data["max"], lines_under(browser.messages, sampler)[-1]


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def read_table(path: Path) -> list[dict]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def check_progress(messages: list[Message], sampler: str, length: int, already: int) -> None:
    """Check the messages of a resumed batch, of which ``already`` images were finished before the run."""
    steps = [m.data["value"] for m in messages if m.type == "progress" and m.data["node"] == sampler]
    assert steps == sorted(steps) and steps[-1] == COUNT * length
    assert already * length <= steps[0], "existing images count from the start"
    assert not [m for m in messages if m.type in PREVIEWS], "a preview would hide the results"
    executed = [m.data for m in messages if m.type == "executed" and m.data["node"] == sampler]
    shown = [len(data["output"]["images"]) for data in executed]
    assert len(shown) > 1 and shown == sorted(shown) and shown[-1] == COUNT, "finished images appear immediately"


def check_table(folder: Path, captions: dict[str, str], seed: int, length: int) -> list[dict]:
    """Check the table of a batch and return its rows. It must have a row for each caption, in order, and each image."""
    table = read_table(folder / "report.csv")
    assert tuple(table[0]) == COLUMNS and {line["id"]: line["prompt"] for line in table} == captions
    assert [line["id"] for line in table] == list(captions) and {line["seed"] for line in table} == {str(seed)}
    assert [line["file"] for line in table] == [f"{number:06}.png" for number in range(1, COUNT + 1)]
    assert {folder / line["file"] for line in table} == set(folder.glob("*.png")) - {folder / "report.png"}
    for line in table:
        assert float(line["seconds"]) > 0 and float(line["tau"]) >= 1 and int(line["tokens"]) == length
    return table


def check_sheet(sheet: np.ndarray, shown: np.ndarray) -> None:
    """Check that the contact sheet has a thumbnail of each image, and that the Collector node outputs this sheet."""
    np.testing.assert_array_equal(sheet, shown)
    assert sheet.shape[1] == SHEET * 200 + 8
    row = (sheet.shape[0] - 8) // -(-COUNT // SHEET)
    places = [(8 + number // SHEET * row, 8 + number % SHEET * 200) for number in range(COUNT)]
    assert all(sheet[top : top + 192, left : left + 192].std() > 8 for top, left in places)


def check_first_and_last(comfy, graph, texts: list[str], seed: int, together: list[np.ndarray]) -> None:
    """Compare these images of a batch with those of the Sampler node in a loop over a list of prompts."""
    prompts, _ = graph.add("ADTTreePrompts", text=f"{texts[0]}\n\n{texts[-1]}")
    graph.set("CLIPTextEncode", text=[prompts, 0]).set("SaveImage", filename_prefix=[prompts, 2])
    outputs = comfy.run(graph.set("ADTTreeSampler", seed=seed, preset="model default").prompt)
    looped = graph.id("SaveImage")
    alone = np.asarray(comfy.images(outputs, looped), dtype=int)
    assert {*np.unique([together[0], together[-1]] - alone)} <= {0, 1}, "Save Image rounds down"
    assert [file["filename"][:2] for file in outputs[looped]["images"]] == ["1-", "3-"], "named by line and prompt"


@pytest.mark.small_models
def test_each_report_lists_truncated_and_skipped_prompts(comfy, batch):
    """Run two lists with the same settings and the same name. Each has its own folder and report."""
    name = uuid.uuid4().hex[:8]
    long = "a red house " * 500
    batch.set("ADTTreeBatchSampler", seed=77, folder=f"My {name}", invalid_prompts="truncate", batch_size=3)
    batch.set("ADTTreePrompts", file=TEXT_BELOW, text=f"a fox\n\n{long}\na hen", count=0)
    workflow = {"id": "w", "extra": {"adt_tree_maps": {"9": {"parts": ["of another picture"]}}, "x": 1}}
    shown_text = text_under_nodes(comfy, batch, extra_pnginfo={"workflow": workflow})
    assert "blank" not in shown_text, "a blank line is no prompt"
    assert "1 of 3 prompts are truncated. The first, '3': truncated to its first " in shown_text
    assert "3 prompts found, 1 too long for " in shown_text, "below Prompts"
    (folder,) = folders = set(comfy.base.glob(f"output/adt_tree_batches/My-{name}-*"))
    fox, cut, hen = report_of(folder)["images"]
    assert (fox["prompt"], fox["note"], hen["prompt"]) == ("a fox", "", "a hen")
    assert cut["caption"] == long.strip() and long.startswith(cut["prompt"])
    assert cut["note"].startswith("truncated to its fir")
    for file in (fox["file"], "report.png"):
        with Image.open(folder / file) as one:
            assert json.loads(one.info["workflow"]) == {"id": "w", "extra": {"adt_tree_maps": {}, "x": 1}}
    first = {path: path.read_bytes() for path in folder.iterdir()}

    batch.set("ADTTreeBatchSampler", invalid_prompts="skip").set("ADTTreePrompts", text=f"a fox\n{long}\na cow")
    shown_text = text_under_nodes(comfy, batch)
    assert "1 of 3 prompts are left out. The first, '2': left out: Prompt too long: " in shown_text
    assert {path: path.read_bytes() for path in first} == first, "something was overwritten"
    (other,) = set(comfy.base.glob(f"output/adt_tree_batches/My-{name}-*")) - folders
    rows = {row["id"]: row for row in read_table(other / "report.csv")}
    assert list(rows) == ["1", "3", "2"] and rows["2"]["file"] == "" and rows["2"]["note"].startswith("left out: ")
    assert [rows[number]["file"] for number in "13"] == ["000001.png", "000003.png"]


@pytest.mark.small_models
def test_each_list_has_its_own_folder_with_a_manifest_and_copies_by_id(comfy, batch):
    """Lists with the same settings and folder name don't share a folder, so a score over a folder is of one list."""
    name = uuid.uuid4().hex[:8]
    batch.set("ADTTreeBatchSampler", folder=name, seed=78).set("ADTTreeBatchReport", copies_by_id=True)
    folders: list[set[Path]] = []
    for colour in ("red", "blue"):
        listed = f"id,prompt\n{colour}/1,a {colour} fox\n{colour}/2,a {colour} hen\n"
        (comfy.base / "input" / f"{name}.csv").write_text(listed, encoding="utf-8")
        comfy.run(batch.set("ADTTreePrompts", file=f"{name}.csv", count=0).prompt)
        folders.append(set(comfy.base.glob(f"output/adt_tree_batches/{name}-*")))
        (folder,) = folders[-1] - (folders[0] if len(folders) > 1 else set())
        rows = read_table(folder / "manifest.csv")
        assert [(row["file"], row["id"], row["prompt"]) for row in rows] == [
            ("000001.png", f"{colour}/1", f"a {colour} fox"),
            ("000002.png", f"{colour}/2", f"a {colour} hen"),
        ]
        copies = {path.name: path.read_bytes() for path in folder.glob("by_id/*")}
        originals = [(folder / row["file"]).read_bytes() for row in rows]
        assert copies == dict(zip((f"{colour}-1.png", f"{colour}-2.png"), originals))
    listed = "id,prompt\nA/1,a fox\na-1,a hen\n"
    (comfy.base / "input" / f"{name}.csv").write_text(listed, encoding="utf-8")
    with pytest.raises(Failed) as error:
        comfy.run(batch.prompt)
    assert "copies_by_id: the id 'a-1' gives no file name of its own" in error.value.message


@pytest.mark.small_models
def test_unpaired_surrogates_in_a_list_do_not_stop_the_batch(comfy, batch):
    """An unpaired surrogate can't be encoded as UTF-8, so the page and the table show an escape sequence."""
    lines = [{"prompt": "a fox", "id": "\ud83d"}, {"prompt": "a \ud83d", "id": "b\ud800"}]
    (comfy.base / "input" / "halves.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    name = uuid.uuid4().hex[:8]
    batch.set("ADTTreeBatchSampler", folder=f"My {name}", invalid_prompts="skip")
    shown_text = text_under_nodes(comfy, batch.set("ADTTreePrompts", file="halves.jsonl"))
    message = "1 of 2 prompts are left out. The first, 'b\\ud800': left out: prompt contains half of a character"
    assert message in shown_text
    (folder,) = comfy.base.glob(f"output/adt_tree_batches/My-{name}-*")
    report = report_of(folder)
    assert [row["id"] for row in (*report["images"], *report["left_out"])] == ["\ud83d", "b\ud800"]


@pytest.mark.small_models
def test_relaxed_batch_is_marked_in_its_message_and_table(comfy, batch):
    lantern = batch.add("ADTTreeLANTERN", neighbours=10, delta=0.9)
    drafting = batch.add("ADTTreeSettings", method="adt-tree")
    batch.set("ADTTreePrompts", count=2).set("ADTTreeBatchSampler", seed=47, settings=drafting, lantern=lantern)
    outputs, messages = comfy.watch(batch.prompt)
    (file,) = outputs[batch.id("ADTTreeBatchReport")]["images"]
    folder = comfy.base / "output" / file["subfolder"]
    rows = report_of(folder)["images"]
    replaced = sum(row["substitution_rate"] for row in rows) / 2
    assert [row["relaxed"] for row in rows] == [True, True] and replaced > 0
    *_, last = lines_under(messages, batch.id("ADTTreeBatchSampler"))
    assert f"; Relaxed: {100 * replaced:.1f} % of the tokens replaced" in last


def text_under_nodes(comfy, batch, **extra) -> str:
    _, messages = comfy.watch(batch.prompt, **extra)
    return " ".join(line for node in batch.prompt for line in lines_under(messages, node))


def finished_images(message: bytes) -> int:
    """Return the number of finished images in a text message (see ``lines_under``), or 0 for another text."""
    found = re.match(rb"(\d+) of \d+ images", message[4 + int.from_bytes(message[:4], "big") :])
    return int(found[1]) if found else 0
