"""Lists of prompts in a running ComfyUI: looped over by stock nodes, or made as one batch that can be stopped and goes
on."""

import csv
import io
import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from adt_tree_pack.nodes.contact_sheet import COLUMNS
from comfy_server import ROOT, Failed
from convert import Graph, to_prompt
from PIL import Image
from small import SMALL, with_small_models
from test_cancel import LIMIT, interrupt_and_time
from test_errors import failed, refused

CAPTIONS = ROOT / "adt_core" / "bundled" / "captions.json"
COUNT = 10
"""Captions of the batch."""
SHEET = 4
"""Thumbnails in a row of its contact sheet."""
TEXT = 3
"""ComfyUI's number for a line of text under a node."""


@pytest.fixture
def coco(comfy):
    """The name of a file of 10 captions in MS-COCO's layout in the input folder, and the captions by id."""
    whole = json.loads(CAPTIONS.read_text(encoding="utf-8"))
    annotations = [
        {**annotation, "id": 7000 + number, "image_id": 3 * number + 100}
        for number, annotation in enumerate(whole["annotations"][:COUNT])
    ]
    name = "captions_test2017.json"
    (comfy.base / "input").mkdir(exist_ok=True)
    (comfy.base / "input" / name).write_text(json.dumps({"images": [], "annotations": annotations}), encoding="utf-8")
    return name, {str(annotation["image_id"]): annotation["caption"] for annotation in annotations}


@pytest.fixture
def batch(comfy, coco):
    """The shipped batch workflow for these captions, with small models."""
    workflow = json.loads(
        (ROOT / "workflows" / "ADT-Tree batch of prompts with report.json").read_text(encoding="utf-8")
    )
    graph = with_small_models(Graph(to_prompt(workflow, comfy.get("/object_info"))))
    return graph.set("ADTTreePrompts", file=coco[0], count=COUNT)


def images(comfy, outputs, node) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in comfy.files({node: outputs[node]})]


def ours(message, node: str) -> bool:
    return message.data["node"] == node


@pytest.mark.contract
@pytest.mark.small_models
def test_a_batch_is_cancelled_and_goes_on(comfy, batch, graph, coco):
    """No image is lost or made twice; they are the sampler's own; table, figures and sheet are complete."""
    captions, seed = coco[1], 41
    folders = lambda: set(comfy.base.glob("output/adt_tree_batches/*"))  # noqa: E731
    before = folders()
    batch.set("ADTTreeBatchSampler", seed=seed, chunk_size=4)
    sampler = batch.id("ADTTreeBatchSampler")
    with comfy.socket() as browser:
        prompt_id = comfy.queue(batch.prompt, browser.id)
        first = browser.wait_for(lambda m: m.type == "progress" and m.data["node"] == sampler)
        browser.wait_for(lambda m: m.type == TEXT and made(m.data) >= 2)
        assert interrupt_and_time(comfy, browser, prompt_id) < LIMIT
    (folder,) = folders() - before
    length = first.data["max"] // COUNT
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    assert 2 <= len(kept) < COUNT and not list(folder.glob("report.*"))

    # Neither what drafts nor how many are made at once has a part in the images.
    window = batch.add("ADTTreeDrafterLoader", model=batch.link("ADTTreeModelLoader"), drafter="jacobi")
    batch.set("ADTTreeBatchSampler", chunk_size=5, drafter=window)
    batch.add("PreviewImage", images=batch.link("ADTTreeCollector"))
    saved, _ = batch.add("SaveImage", images=batch.link("ADTTreeBatchSampler"), filename_prefix=uuid.uuid4().hex)
    with comfy.socket() as browser:
        outputs = comfy.wait(comfy.queue(batch.prompt, browser.id), timeout=900)
        browser.wait_for(lambda m: m.type == "execution_success")
        steps = [m.data["value"] for m in browser.messages if m.type == "progress" and m.data["node"] == sampler]
        assert steps == sorted(steps) and len(kept) * length < steps[0] and steps[-1] == COUNT * length, (
            "what was made before counts at once"
        )
        assert not [m for m in browser.messages if m.type in (1, 4)], "a preview would hide the results"
        shown = [len(m.data["output"]["images"]) for m in browser.messages if m.type == "executed" and ours(m, sampler)]
        assert len(shown) > 1 and shown == sorted(shown) and shown[-1] == COUNT, "finished images appear at once"
    assert folders() - before == {folder}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "an image was made twice"
    with Image.open(next(iter(kept))) as one:
        assert (
            json.loads(one.info["prompt"])[sampler]["inputs"]["seed"]
            == seed
            == json.loads(one.info["adt_tree"])["seed"]
        ), "it brings its graph along"

    with (folder / "report.csv").open(newline="", encoding="utf-8-sig") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS and {line["id"]: line["prompt"] for line in table} == captions
    assert [line["id"] for line in table] == list(captions) and {line["seed"] for line in table} == {str(seed)}
    assert {folder / line["file"] for line in table} == set(folder.glob("*.png")) - {folder / "report.png"} and len(
        {line["file"] for line in table}
    ) == COUNT
    assert all(
        float(line["seconds"]) > 0 and float(line["tau"]) >= 1 and int(line["tokens"]) == length for line in table
    )
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [Path(image["drafter"]).name for image in report["images"]].count(SMALL) == len(kept) and report["summary"][
        "images"
    ] == COUNT
    assert all(line["file"].startswith(f"{n:02}-{line['id']}-") for n, line in enumerate(table, start=1)), (
        "place and id"
    )
    with Image.open(folder / "report.png") as one:
        assert json.loads(one.info["prompt"])[sampler]["inputs"]["chunk_size"] == 5, "the sheet brings its graph along"
    together = images(comfy, outputs, saved)
    (sheet,) = images(comfy, outputs, batch.id("ADTTreeCollector"))
    np.testing.assert_array_equal(sheet, images(comfy, outputs, batch.id("PreviewImage"))[0])
    assert sheet.shape[1] == SHEET * 200 + 8 and all(
        sheet[top : top + 192, left : left + 192].std() > 8 for top, left in places(sheet)
    )
    assert {file["filename"] for file in outputs[sampler]["images"]} == {line["file"] for line in table}

    # The first was made before, the last after. Both are those of the ordinary sampler, in ComfyUI's loop over a list.
    texts = list(captions.values())
    graph.set("ADTTreeSampler", preset="model's own")
    looped = loop(graph, text=f"{texts[0]}\n\n{texts[-1]}", seed=seed)
    outputs = comfy.run(graph.prompt)
    alone = np.asarray(images(comfy, outputs, looped), dtype=int)
    assert {*np.unique([together[0], together[-1]] - alone)} <= {0, 1}, "Save Image rounds down"
    assert [file["filename"][:2] for file in outputs[looped]["images"]] == ["1-", "3-"], (
        "files are called by the number of the line and the prompt"
    )


@pytest.mark.small_models
def test_each_list_has_its_report_and_says_what_was_cut_or_left_out(comfy, batch):
    """In a folder that the user has named; of the same settings, so that both lists share it."""
    name, long = uuid.uuid4().hex[:8], "a red house " * 500
    batch.set("ADTTreeBatchSampler", seed=77, folder=f"My {name}", unfit_prompts="cut", chunk_size=3)
    batch.set("ADTTreePrompts", file="(the text below)", text=f"a fox\n\n{long}\na hen", count=0)
    workflow = {"id": "w", "extra": {"adt_tree_maps": {"9": {"parts": ["of another picture"]}}, "x": 1}}
    with comfy.socket() as browser:
        comfy.wait(comfy.queue(batch.prompt, browser.id, extra_pnginfo={"workflow": workflow}), timeout=300)
        browser.wait_for(lambda m: m.type == "execution_success")
        said = b" ".join(m.data for m in browser.messages if m.type == TEXT).decode(errors="replace")
    assert "1 of 4 prompts are blank and were left out: '2'." in said
    assert "1 of 3 prompts are not read to their ends. The first, '3': cut to its first " in said
    (folder,) = comfy.base.glob(f"output/adt_tree_batches/My-{name}-*")
    fox, cut, hen = json.loads((folder / "report.json").read_text(encoding="utf-8"))["images"]
    assert (fox["prompt"], fox["note"], hen["prompt"]) == ("a fox", "", "a hen")
    assert (
        cut["caption"] == long.strip() and long.startswith(cut["prompt"]) and cut["note"].startswith("cut to its fir")
    )
    for name in (fox["file"], "report.png"):
        with Image.open(folder / name) as one:
            assert json.loads(one.info["workflow"]) == {"id": "w", "extra": {"adt_tree_maps": {}, "x": 1}}
    first = {path: path.read_bytes() for path in folder.iterdir()}

    batch.set("ADTTreeBatchSampler", unfit_prompts="skip").set("ADTTreePrompts", text=f"a fox\n{long}\na cow")
    with comfy.socket() as browser:
        comfy.wait(comfy.queue(batch.prompt, browser.id), timeout=300)
        browser.wait_for(lambda m: m.type == "execution_success")
        said = b" ".join(m.data for m in browser.messages if m.type == TEXT).decode(errors="replace")
    assert "1 of 3 prompts are left out. The first, '2': left out: prompt is " in said
    assert "'report' is the report of another list, and stays. This list's is 'report-2', in the same folder." in said
    assert {path: path.read_bytes() for path in first} == first, "something was overwritten"
    with (folder / "report-2.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["1", "3", "2"] and rows["2"]["file"] == "" and rows["2"]["note"].startswith("left out: ")
    assert rows["1"]["file"] == fox["file"] and rows["3"]["file"].startswith("3-a-cow-")


@pytest.mark.small_models
def test_halves_of_characters_in_a_list_cost_no_batch(comfy, batch):
    """They have no UTF-8, so no line on the page and no table can hold them as they are."""
    lines = [{"prompt": "a fox", "id": "\ud83d"}, {"prompt": "a \ud83d", "id": "b\ud800"}]
    (comfy.base / "input" / "halves.jsonl").write_text("\n".join(map(json.dumps, lines)))
    name = uuid.uuid4().hex[:8]
    batch.set("ADTTreeBatchSampler", folder=f"My {name}", unfit_prompts="skip").set(
        "ADTTreePrompts", file="halves.jsonl"
    )
    with comfy.socket() as browser:
        comfy.wait(comfy.queue(batch.prompt, browser.id), timeout=300)
        browser.wait_for(lambda m: m.type == "execution_success")
        said = b" ".join(m.data for m in browser.messages if m.type == TEXT).decode(errors="replace")
    assert "1 of 2 prompts are left out. The first, 'b\\ud800': left out: prompt has half a character" in said
    (folder,) = comfy.base.glob(f"output/adt_tree_batches/My-{name}-*")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in (*report["images"], *report["left_out"])] == ["\ud83d", "b\ud800"]


@pytest.mark.small_models
def test_a_relaxed_batch_says_so_in_its_line_its_table_and_its_sheet(comfy, batch, graph):
    bounds = {"rule": "delta (LANTERN)", "neighbours": 10, "delta": 0.9, "factor": 2.0, "max_substitution": 1.0}
    drafting = batch.add("ADTTreeSettings", **{**graph.inputs("ADTTreeSettings"), "method": "adt-tree"})
    lantern = batch.add("ADTTreeLantern", **bounds)
    batch.set("ADTTreePrompts", count=2).set("ADTTreeBatchSampler", seed=47, settings=drafting, lantern=lantern)
    with comfy.socket() as browser:
        outputs = comfy.wait(comfy.queue(batch.prompt, browser.id))
        browser.wait_for(lambda m: m.type == "execution_success")
        said = [m.data for m in browser.messages if m.type == TEXT]
    (file,) = outputs[batch.id("ADTTreeCollector")]["images"]
    folder = comfy.base / "output" / file["subfolder"]
    rows = json.loads((folder / "report.json").read_text(encoding="utf-8"))["images"]
    replaced = sum(row["substitution_rate"] for row in rows) / 2
    assert [row["relaxed"] for row in rows] == [True, True] and replaced > 0
    assert f"; Relaxed: {100 * replaced:.1f} % of the tokens replaced".encode() in said[-1]


def made(message: bytes) -> int:
    """Finished images, by the line under the sampler; before it come the length of the node's id and the id."""
    return int(message[4 + int.from_bytes(message[:4], "big") :].split(b" of ")[0])


def places(sheet: np.ndarray) -> list[tuple[int, int]]:
    """Where the thumbnails are, row by row."""
    row = (sheet.shape[0] - 8) // -(-COUNT // SHEET)
    return [(8 + number // SHEET * row, 8 + number % SHEET * 200) for number in range(COUNT)]


def loop(graph, text: str, seed: int) -> str:
    """Let the ordinary workflow run for each prompt of a list; the node that saves."""
    values = {
        "file": "(the text below)",
        "text": text,
        "caption": "first",
        "filter": "",
        "start": 0,
        "count": 8,
        "shuffle": 0,
    }
    node, _ = graph.add("ADTTreePrompts", **values)
    graph.set("CLIPTextEncode", text=[node, 0]).set("ADTTreeSampler", seed=seed).set(
        "SaveImage", filename_prefix=[node, 2]
    )
    return graph.id("SaveImage")


@pytest.mark.contract
def test_prompt_lists(comfy, batch, coco):
    """Parts, filter and shuffle; a file in the input folder is offered, and read again when it has changed."""
    name, captions = coco
    assert name in comfy.get("/object_info/ADTTreePrompts")["ADTTreePrompts"]["input"]["optional"]["file"][1]["options"]
    assert listed(comfy, batch, start=8) == list(captions.items())[8:]
    shuffled = listed(comfy, batch, shuffle=5, count=4)
    assert len(set(shuffled)) == 4 and set(shuffled) < set(captions.items()) and shuffled != list(captions.items())[:4]
    found = listed(comfy, batch, filter="RED ")
    assert found == [item for item in captions.items() if "red " in item[1].lower()] != []
    assert listed(comfy, batch, caption="all", count=1)[0][0] == "7000"
    assert listed(comfy, batch, count=0) == list(captions.items()), "0 takes all"
    (comfy.base / "input" / name).write_text('["a cat"]')
    assert listed(comfy, batch) == [("1", "a cat")]
    assert listed(comfy, batch, file="(the text below)", text="a cow\n\na dog") == [("1", "a cow"), ("3", "a dog")]
    choices = {"file": "(the text below)", "text": "a {red|blue} cow\n{|a dog}", "choices": "all combinations"}
    assert listed(comfy, batch, **choices) == [("1.1", "a red cow"), ("1.2", "a blue cow"), ("2.2", "a dog")]


def listed(comfy, batch, **values) -> list[tuple[str, str]]:
    """The ids and prompts that the node gives, one run of a stock node for each."""
    node = batch.id("ADTTreePrompts")
    prompt = Graph({node: {"class_type": "ADTTreePrompts", "inputs": {**batch.inputs("ADTTreePrompts"), **values}}})
    shown = [prompt.add("PreviewAny", source=[node, output])[0] for output in (1, 0)]
    outputs = comfy.run(prompt.prompt)
    return list(zip(*(outputs[node]["text"] for node in shown)))


@pytest.mark.parametrize(
    "node, values, words",
    [
        ("ADTTreePrompts", {"file": "nowhere.json"}, "file: "),
        ("ADTTreePrompts", {"file": "(the text below)", "text": "nowhere.tsv"}, "text: "),
        ("ADTTreePrompts", {"file": "/etc/prompts.txt"}, "file: '/etc/prompts.txt' is outside ComfyUI's input folder"),
        ("ADTTreePrompts", {"file": "../outside.txt"}, "is outside ComfyUI's input folder"),
        ("ADTTreePrompts", {"file": "C:\\prompts.txt"}, "is outside ComfyUI's input folder"),
        ("ADTTreePrompts", {"file": "\\\\host\\share\\p.txt"}, "is outside ComfyUI's input folder"),
        (
            "ADTTreePrompts",
            {"file": "(the text below)", "text": "a/../../outside.json"},
            "text: 'a/../../outside.json'",
        ),
        ("ADTTreePrompts", {"file": "(the text below)", "text": "a\n" * 600_000}, "text has 1200000 characters"),
        ("ADTTreePrompts", {"count": -1}, "count"),
        ("ADTTreeBatchSampler", {"unfit_prompts": "guess"}, "unfit_prompts"),
        ("ADTTreePrompts", {"caption": "shortest"}, "caption"),
        ("ADTTreeBatchSampler", {"guidance": float("nan")}, "guidance"),
        ("ADTTreeBatchSampler", {"chunk_size": 0}, "chunk_size"),
    ],
)
def test_bad_values_are_refused_before_the_run(comfy, batch, node, values, words):
    assert words in refused(comfy, batch.set(node, **values))


@pytest.mark.parametrize(
    "node, change, words",
    [
        ("ADTTreePrompts", {"filter": "no such thing"}, "filter: none of the 10 prompts"),
        ("ADTTreePrompts", {"start": 10}, "start is 10"),
        ("ADTTreeBatchSampler", {"ids": ["other", 1]}, "ids: 1 ids arrived for 10 prompts"),
        ("ADTTreeBatchSampler", {"prompts": ["other", 0], "ids": None, "seeds": None}, "the id '1': prompt is"),
        ("ADTTreeBatchSampler", {"negative": "a red house " * 500}, "negative: prompt is"),
        ("ADTTreeBatchSampler", {"seed": ["lengths", 0]}, "seed: 10 values arrived"),
        ("ADTTreeBatchSampler", {"seeds": ["other", 3]}, "seeds: 1 seeds arrived for 10 prompts"),
        ("ADTTreeBatchSampler", {"prompts": ["none", 0], "ids": None, "seeds": None}, "prompts: none arrived"),
        ("ADTTreeBatchSampler", {"prompts": ["null", 0], "ids": None, "seeds": None}, "prompts: None is among them"),
    ],
)
def test_bad_lists_fail_at_once_and_write_nothing(comfy, batch, node, change, words):
    other = batch.add(
        "ADTTreePrompts", **{**batch.inputs("ADTTreePrompts"), "file": "(the text below)", "text": "a red house " * 500}
    )[0]
    others = {
        "other": other,
        "lengths": batch.add("StringLength", string=batch.link("ADTTreePrompts"))[0],  # numbers in a list
        "none": batch.add("ProbeValues", text="[]")[0],
        "null": batch.add("ProbeValues", text='["a fox", null]')[0],
    }
    for name, value in change.items():
        if value is None:
            batch.drop(node, name)
        else:
            batch.set(node, **{name: [others[value[0]], value[1]] if isinstance(value, list) else value})
    assert words in failed(comfy, batch, node)


@pytest.mark.parametrize("node, name", [("ADTTreePrompts", "file"), ("ADTTreeBenchmark", "prompts")])
def test_a_long_list_is_not_read_while_comfyui_validates(comfy, batch, node, name):
    """Nobody else is answered then. What is wrong in it is found when its node runs; in a short one, at once."""
    for size, wrong in (("short", 3), ("long", 10**6)):
        (comfy.base / "input" / f"{size}.json").write_text("[" + "1, " * wrong + "1]")
    if node == "ADTTreeBenchmark":
        batch = Graph({"1": batch.prompt[batch.id("ADTTreeModelLoader")]})
        batch.add(node, model=["1", 0], count=1, methods="jacobi", seed=0, guidance=1.0, temperature=1.0)
    assert "short.json' is not what its ending says" in refused(comfy, batch.set(node, **{name: "short.json"}))
    assert "long.json' is not what its ending says" in failed(comfy, batch.set(node, **{name: "long.json"}), node)


@pytest.mark.parametrize("name", ["../report", "", "a/b", "a:b", "nul", "x" * 101])
def test_a_report_needs_a_plain_name(comfy, batch, name):
    """ComfyUI runs what else a prompt asks for; here that fails at once."""
    batch.set("ADTTreeCollector", name=name).set("ADTTreePrompts", filter="no such thing")
    answer = comfy.post("/prompt", {"prompt": batch.prompt})
    (error,) = answer["node_errors"][batch.id("ADTTreeCollector")]["errors"]
    assert f"name: '{name[:30]}" in error["details"]
    with pytest.raises(Failed, match="filter: none"):
        comfy.wait(answer["prompt_id"])
