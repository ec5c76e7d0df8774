"""Diagnostics node: tests how a model runs on this machine, and returns a report of one page."""

import time

from comfy_api.v0_0_2 import io

from ..adt_core.app import diagnose, prepare_diagnosis
from .clip_and_vae import text_encoder
from .comfy_runtime import Progress, check_cancelled, shown_text
from .sampling import prepare
from .schema import Tooltips, schema
from .sockets import DrafterSocket, LoadedDrafter, LoadedModel, ModelSocket, checked

_PARTS = 1000  # number of steps of the progress bar


_DIAGNOSTICS_TOOLTIPS = Tooltips(
    inputs={
        "model": "The model to test.",
        "drafter": "The drafter to test. If not connected, the first installed drafter that fits the model.",
    },
    outputs={"report": "The report as Markdown, for Preview as Text."},
)


class ADTTreeDiagnostics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeDiagnostics",
            "ADT-Tree Diagnostics",
            tooltips=_DIAGNOSTICS_TOOLTIPS,
            description="Tests how fast this model runs here, and that drafting does not change the image. Takes at "
            "most two minutes.",
            search_aliases=["check", "doctor", "diagnose", "is it working", "why slow", "诊断", "检查"],
            inputs=[ModelSocket.Input("model"), DrafterSocket.Input("drafter", optional=True)],
            outputs=[io.String.Output(display_name="report")],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_) -> float:
        """Return a new value every time, so that the check always runs again."""
        return time.monotonic()

    @classmethod
    @checked
    def execute(cls, model: LoadedModel, drafter: LoadedDrafter | None = None) -> io.NodeOutput:
        run = prepare(model, drafter=drafter)
        bar = Progress(_PARTS, cls.hidden.unique_id, None)

        def progress(share: float, line: str) -> None:
            bar.update(int(share * _PARTS), line)

        with text_encoder(model):
            subject = prepare_diagnosis(run.pipeline, check_cancelled, progress)
        with run.loaded(memory_required=subject.memory_required(model.patcher.load_device)):
            report = diagnose(subject)
        bar.update(_PARTS)
        bar.say(report.verdict, is_lasting=True)
        return io.NodeOutput(report.page, ui=shown_text(report.page, "adt_tree_diagnostics"))
