"""Collector node: writes the results of a batch as a contact sheet, a table and a JSON file."""

import json
import logging
from functools import partial

import numpy as np
import torch
from comfy_api.v0_0_2 import io, ui

from ..adt_core.messages import message
from .batch import FOLDER, metadata
from .clip_and_vae import to_picture
from .comfy_runtime import refusal, tell
from .contact_sheet import contact_sheet, own_name, remark, summary, write_report
from .folders import check_name
from .schema import Tooltips, schema
from .sockets import BatchResults, ResultsSocket, checked

_LABELS = {"id and prompt": "{id}: {prompt}", "id": "{id}", "prompt": "{prompt}", "none": ""}


_COLLECTOR_TOOLTIPS = Tooltips(
    inputs={
        "results": "The results of an ADT-Tree Batch Sampler.",
        "filename": "Name of the three files, without extension. If another list has a report of this name, a number "
        "is added.",
        "columns": "Images per row of the contact sheet. 0: about as many columns as rows.",
        "thumbnail_width": "Width of each image on the contact sheet in pixels. It is reduced if the sheet gets too "
        "large.",
        "label": "Text below each image on the contact sheet.",
    },
    outputs={
        "sheet": "The contact sheet.",
        "stats": "Statistics of the complete batch as JSON, for Preview as Text.",
    },
)


class ADTTreeBatchReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeBatchReport",
            "ADT-Tree Batch Report",
            tooltips=_COLLECTOR_TOOLTIPS,
            description="Writes a report next to the images of a batch: a contact sheet, a table (CSV) and all "
            "statistics (JSON).",
            search_aliases=["contact sheet", "report", "figures", "statistics", "csv", "拼图", "报告"],
            inputs=[
                ResultsSocket.Input("results"),
                io.String.Input("filename", default="report"),
                io.Int.Input("columns", default=0, min=0, max=256),
                io.Int.Input("thumbnail_width", default=192, min=16, max=2048),
                io.Combo.Input("label", options=list(_LABELS), default="id and prompt"),
            ],
            outputs=[io.Image.Output(display_name="sheet"), io.String.Output(display_name="stats")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, filename: str | None = None) -> bool | str:
        return refusal(partial(check_name, input_id="filename"), name=filename)

    @classmethod
    @checked
    def execute(
        cls, results: BatchResults, filename: str, columns: int, thumbnail_width: int, label: str
    ) -> io.NodeOutput:
        check_name(filename, "filename")
        pictures = [to_picture(image) for image in results.images]
        labels = [_LABELS[label].format(**row) for row in results.rows]
        sheet = contact_sheet(pictures, labels, columns, thumbnail_width, remark(results.rows))
        own = own_name(results.folder, filename, results.rows)
        what = (results.rows, results.settings, sheet)
        *_, path = write_report(*what, results.folder, own, metadata(cls.hidden), results.left_out)
        if own != filename:
            where = f"{FOLDER}/{results.folder.name}"
            tell(message("report.renamed", name=own, folder=where, wanted=filename), logging.INFO)
        image = torch.from_numpy(np.asarray(sheet, dtype=np.float32) / 255)[None]
        saved = ui.SavedResult(path.name, f"{FOLDER}/{results.folder.name}", io.FolderType.output)
        return io.NodeOutput(
            image, json.dumps(summary(results.rows, len(results.left_out)), indent=1), ui=ui.SavedImages([saved])
        )
