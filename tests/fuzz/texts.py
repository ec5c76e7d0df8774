"""Fuzzers for lists of prompts, captions, and records of benchmarks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import strategies as st

from adt_core import Pipeline, Recipe, cache_folder
from adt_core.app.prompts import CAPTIONS, PROMPT_FILES, file_stems, non_blank, read_all, select
from adt_core.drafters.jacobi import JacobiDrafter
from adt_core.engine.device import profiles
from adt_core.files import write
from adt_core.lab.records import FIGURES, RUNS, append, open_records
from adt_core.lab.report import summary, table
from adt_core.models.load import load_target
from adt_core.policies.cost_model import CostModel, RoundResult
from adt_core.run.images import named_folder, read_settings, to_png
from tests.layouts.families import WRITERS

from .strategies import ODD, TEXTS, as_json, changed, damaged

COCO = {
    "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 8, "file_name": "8.jpg"}],
    "annotations": [{"id": number, "image_id": 7 + number % 2, "caption": f"A cat {number}."} for number in range(4)],
}
TABLE = "Prompt\tCategory\nA cat\tAnimals\nA house\tBuildings\n"
LINES = '"a cat"\n{"prompt": "a dog", "id": 3}\n{"caption": "a cow"}\n'


def lists(folder: Path) -> Callable:
    """Read prompt files of all formats. Select prompts from them by caption, filter and numbers."""

    def content(draw: Callable, ending: str) -> bytes:
        if ending == ".json" and draw(st.booleans()):
            return as_json(changed(draw, draw(st.sampled_from([COCO, ["a cat", "a dog"]])))).encode()
        if ending == ".jsonl" and draw(st.booleans()):
            return b"\n".join(as_json(draw(ODD)).encode() for _ in range(draw(st.integers(0, 4))))
        tables = {".tsv": TABLE, ".csv": TABLE.replace("\t", ",")}
        sound = {".json": json.dumps(COCO), ".jsonl": LINES, **tables}.get(ending, "a cat\na dog\n").encode()
        return draw(st.binary(max_size=40)) if draw(st.booleans()) else damaged(draw, sound)

    def try_input(data) -> None:
        ending = data.draw(st.sampled_from([*PROMPT_FILES, ".md", ""]))
        path = folder / f"prompts{ending}"
        path.write_bytes(content(data.draw, ending))
        caption = data.draw(st.sampled_from(CAPTIONS))
        contained = data.draw(st.just("") | TEXTS)
        numbers = data.draw(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9)))
        prompts = non_blank(read_all(path, caption))
        assert len(file_stems(prompts)) == len(prompts)
        assert all(type(text) is str for pair in prompts for text in pair[:2])
        assert all("/" not in stem and ".." not in stem for stem in file_stems(prompts))
        select(prompts, contained, *numbers)

    return try_input


def captions(folder: Path) -> Callable:
    """Use any text as a prompt of any family, in the name of a folder, and in the settings of an image."""
    targets = [load_target(write(folder / name)) for name, write in WRITERS.items()]

    def try_input(data) -> None:
        text = data.draw(TEXTS | st.text(st.characters(), max_size=200) | st.lists(TEXTS, max_size=9).map(" ".join))
        pipeline = Pipeline(data.draw(st.sampled_from(targets)), Recipe(negative_prompt=data.draw(st.just("") | TEXTS)))
        pipeline.check([text])
        named = named_folder(folder / "out", "key", text, "model")
        assert named.parent == folder / "out" and len(named.name.encode()) < 255
        path = named / "000001.png"
        write(path, to_png(torch.zeros(3, 8, 8), pipeline.settings(text)))
        assert read_settings(path)["prompt"] == text

    return try_input


def records(folder: Path) -> Callable:
    """Open files of benchmark records and files of measured costs, with unexpected or damaged contents."""
    settings = {"prompts": ["a cat", "a dog"], "methods": {"no-drafting": {}}, "grid": [1, 2], "metrics": ["m"]}
    figures = {**dict.fromkeys(FIGURES, 1), "acceptance": [[1, 2]], "quality": {"score": [0.5, 1]}}
    runs = {"no-drafting": {**figures, "picture": "images/0.png"}}
    sound = [{"prompt": number, "text": text, "runs": runs} for number, text in enumerate(settings["prompts"])]
    modes = JacobiDrafter.modes
    model = CostModel("a device", 1, modes, on_cpu=True).learn([RoundResult((modes[0].name, 4), 0.01, 2)])
    profiles.save_costs(model)
    (kept,) = cache_folder.folder().glob("costs-*.json")

    def try_input(data) -> None:
        shutil.rmtree(folder / "runs", ignore_errors=True)
        (folder / "runs" / "images").mkdir(parents=True)
        (folder / "runs" / "images" / "0.png").touch()
        path = folder / "runs" / RUNS
        is_sound = data.draw(st.booleans())
        lines = [as_json(data.draw(st.sampled_from(sound)) if is_sound else changed(data.draw, sound[0]))]
        lines += [as_json({"settings": settings})] if data.draw(st.booleans()) else []
        head = as_json({"settings": settings if data.draw(st.integers(0, 3)) else data.draw(ODD)})
        path.write_bytes(damaged(data.draw, "\n".join([head, *lines, ""]).encode()))
        kept.write_bytes(damaged(data.draw, as_json(changed(data.draw, model.to_json())).encode()))
        model.with_json(profiles.find_costs(model.name, 1)).profile((4, 8))
        found = open_records(folder / "runs", settings)
        if found:
            table(summary(found), len(found))
        append(folder / "runs", sound[1])
        assert open_records(folder / "runs", settings)[: len(found)] == found

    return try_input
