"""Collector node: writes the results of a batch as a contact sheet, a table and a JSON file."""

import json
import logging
from functools import partial

import numpy as np
import torch
from comfy_api.v0_0_2 import io, ui

from ..adt_core import AdtError
from ..adt_core.errors import shown
from ..adt_core.files import file_name_part, opened, write_in
from ..adt_core.messages import message
from .batch import FOLDER, metadata
from .clip_and_vae import to_picture
from .comfy_runtime import check_cancelled, refusal, tell
from .contact_sheet import contact_sheet, own_name, remark, summary, write_report
from .folders import check_name
from .schema import Tooltips, schema
from .sockets import BatchResults, ResultsSocket, checked

BY_ID = "by_id"
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
        "copies_by_id": "Also copy each image to the subfolder by_id, as ID.png, for programs that find an image by "
        "its id, such as scores on MS-COCO.",
    },
    outputs={"sheet": "The contact sheet.", "stats": "Statistics of the complete batch as JSON, for Preview as Text."},
)


def copy_by_id(results: BatchResults) -> None:
    """Copy each image of a batch to the subfolder `BY_ID`, as its id with the suffix .png.

    Raises:
        AdtError: If two images would have the same name, before any copy is made.
    """
    files: dict[str, tuple[str, str]] = {}
    for row in results.rows:
        name = f"{file_name_part(row['id'])}.png"
        other = files.setdefault(name.casefold(), (name, row["file"]))
        if name == ".png" or other[1] != row["file"]:
            raise AdtError("copies_by_id.no_name", id=shown(row["id"]))
    for name, file in files.values():
        check_cancelled()
        with opened(results.folder / file) as image:
            write_in(results.folder, f"{BY_ID}/{name}", image.read())


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
                io.Boolean.Input("copies_by_id", default=False),
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
        cls,
        results: BatchResults,
        filename: str,
        columns: int,
        thumbnail_width: int,
        label: str,
        copies_by_id: bool = False,
    ) -> io.NodeOutput:
        check_name(filename, "filename")
        if copies_by_id:
            copy_by_id(results)
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
