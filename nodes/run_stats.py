"""Two nodes for the trace of a run: one draws its acceptance maps as images, the other returns its statistics."""

import json

import torch
import torch.nn.functional as F
from comfy_api.v0_0_2 import io

from ..adt_core import AdtError, Trace
from ..adt_core.policies import method_title
from ..adt_core.trace import FIGURES
from .colours import scale
from .schema import Tooltips, schema
from .sockets import TraceSocket, checked

_PIXELS = 16  # pixels per side of a token, if no images are connected


_MAP_TOOLTIPS = Tooltips(
    inputs={
        "trace": "The trace of an ADT-Tree Sampler.",
        "show": "The value to draw: tokens per pass (acceptance), size of the tree (depth, width), milliseconds per "
        "token (time), or the model's probability of the most probable token (certainty).",
        "opacity": "Opacity of the map over the images. 1 hides the images.",
        "images": "The images of the run, in any size, to draw the map over. If not connected, only the map is drawn.",
    },
    outputs={
        "IMAGE": "One map per image, in colour: dark for low values, yellow for high values.",
        "MASK": "The maps as numbers from 0 to 1, the ends of the colour scale.",
    },
)


class ADTTreeMapToImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeMapToImage",
            "ADT-Tree Map to Image",
            tooltips=_MAP_TOOLTIPS,
            description="Draws the map of a run as an image and a mask. Connect images to draw it over them.",
            search_aliases=["acceptance map", "heatmap", "trace", "接受图", "热图"],
            inputs=[
                TraceSocket.Input("trace"),
                io.Image.Input("images", optional=True),
                io.Combo.Input("show", options=list(FIGURES), default=FIGURES[0]),
                io.Float.Input("opacity", default=0.6, min=0.0, max=1.0, step=0.05),
            ],
            outputs=[io.Image.Output(display_name="IMAGE"), io.Mask.Output(display_name="MASK")],
        )

    @classmethod
    @checked
    def execute(cls, trace: Trace, show: str, opacity: float, images: torch.Tensor | None = None) -> io.NodeOutput:
        if images is not None and len(images) != trace.images:
            raise AdtError("trace.other_images", count=len(images), traced=trace.images)
        values = torch.tensor([trace.token_map(show, image) for image in range(trace.images)], dtype=torch.float32)
        size = tuple(images.shape[1:3]) if images is not None else tuple(side * _PIXELS for side in trace.grid)
        masks, maps = coloured(values, show, size)
        if images is not None:
            maps = torch.lerp(images[..., :3].float(), maps.to(images.device), opacity)
        return io.NodeOutput(maps, masks)


def coloured(values: torch.Tensor, show: str, size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw maps.

    Args:
        values: [images, rows, columns], the values of tokens.
        show: One of `FIGURES`, which the values show.
        size: Height and width in pixels.

    Returns:
        Positions on the colour scale [images, H, W] in [0, 1], and their colours [images, H, W, 3] in [0, 1].
    """
    low, high = _ends(values, show)
    shares = (values - low) / (high - low)
    masks = F.interpolate(shares.clamp(0, 1)[:, None], size=size, mode="nearest")[:, 0]
    return masks, torch.from_numpy(scale()).float()[(masks * 255).round().long()] / 255


def _ends(values: torch.Tensor, show: str) -> tuple[float, float]:
    """Return the values at the dark and the light end of the colour scale, as in the map on the sampler node.

    For the value "time", the slowest 2 % of the tokens are ignored, because the first token of a run is always slow.
    """
    if show == "certainty":  # a probability
        return 0.0, 1.0
    low = 1.0 if show == "acceptance" else 0.0
    top = float(values.flatten().quantile(0.98) if show == "time" else values.max())
    return low, max(top, low + (0.01 if show == "time" else 1.0))


_STATS_TOOLTIPS = Tooltips(
    inputs={"trace": "The trace of an ADT-Tree Sampler."},
    outputs={"text": "The statistics in a few lines.", "json": "Statistics and settings as one JSON object."},
)


class ADTTreeRunStats(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeRunStats",
            "ADT-Tree Run Stats",
            tooltips=_STATS_TOOLTIPS,
            description="Shows the statistics of a run as text, and with all settings as JSON.",
            search_aliases=["statistics", "report", "tau", "tokens per second", "统计", "速度"],
            inputs=[TraceSocket.Input("trace")],
            outputs=[io.String.Output(display_name="text"), io.String.Output(display_name="json")],
        )

    @classmethod
    @checked
    def execute(cls, trace: Trace) -> io.NodeOutput:
        report = trace.report()
        correlation = trace.certainty_correlation()
        return io.NodeOutput(_lines(report, correlation), json.dumps({**report, "certainty_correlation": correlation}))


def _lines(report: dict, correlation: float | None) -> str:
    """Return the statistics of a run as text, from `Trace.report` and `Trace.certainty_correlation`."""
    lines = [
        f"{method_title(report['method'])}{relaxed(report)}, seed {report['seed']}, "
        f"{report['dtype']} on {report['device']}",
        f"{report['tokens']} tokens in {report['seconds']:.2f} s: {report['tokens_per_second']:.1f} a second",
        f"{report['target_forwards']} passes of the model, {report['tau']:.2f} tokens per image in each (tau): "
        f"{report['accepted_per_round']:.2f} accepted drafts, and the model's own token",
    ]
    if report["verified_drafts"]:
        lines.append(f"trees {report['mean_depth']:.2f} deep with {report['mean_drafts']:.2f} drafts on average")
    if correlation is not None:
        lines.append(f"rank correlation of the model's certainty with accepted drafts: {correlation:.2f}")
    if report["drafting_seconds"]:  # not measured on a GPU, where drafting and verification are launched together
        lines.append(f"{100 * report['drafting_seconds'] / report['seconds']:.0f} % of the time spent on drafting")
    return "\n".join(lines)


def relaxed(report: dict) -> str:
    """Return the suffix of a run's method name: the share of tokens that LANTERN replaced, or "" without LANTERN."""
    replaced = f"{100 * report['substitution_rate']:.1f} % of the tokens replaced by LANTERN"
    return f", Relaxed ({replaced})" if report["lantern"] else ""
