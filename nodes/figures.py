"""A run's trace as data for other nodes: pictures of its maps, and its figures as text."""

import json

import torch
import torch.nn.functional as F
from comfy_api.v0_0_2 import io

from ..adt_core.errors import AdtError
from ..adt_core.rules.trace import FIGURES, Trace
from .colours import scale
from .loaders import CATEGORY
from .sockets import TraceSocket

_PIXELS = 16  # of a token's side where there is no image


class ADTTreeMapImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeMapImage",
            display_name="ADT-Tree Map to Image",
            category=CATEGORY,
            description="Draws the map of a run, as the sampler shows it: what each round brought, token by token. With images, over them.",
            search_aliases=["acceptance map", "heatmap", "trace"],
            inputs=[
                TraceSocket.Input("trace", tooltip="What an ADT-Tree Sampler drafted and accepted."),
                io.Image.Input(
                    "images",
                    optional=True,
                    tooltip="The run's images, in any size: the map is laid over them. Without them, the map alone.",
                ),
                io.Combo.Input(
                    "show",
                    options=list(FIGURES),
                    default=FIGURES[0],
                    tooltip="acceptance: tokens that the round emitted. depth, width: of the tree that it checked. time: milliseconds per token.",
                ),
                io.Float.Input(
                    "opacity",
                    default=0.6,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    tooltip="How much of the map covers the images; 1 hides them.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="IMAGE",
                    tooltip="The maps in colour, from dark for low values to yellow for high ones, one per image.",
                ),
                io.Mask.Output(
                    display_name="MASK",
                    tooltip="The maps as numbers: 0 for the lower end of the scale, 1 for the upper.",
                ),
            ],
        )

    @classmethod
    def execute(cls, trace: Trace, show: str, opacity: float, images: torch.Tensor | None = None) -> io.NodeOutput:
        if images is not None and len(images) != trace.images:
            raise AdtError(
                f"images: {len(images)} were given, but the trace is of {trace.images}; connect the images of the same run."
            )
        values = torch.tensor([trace.token_map(show, image) for image in range(trace.images)], dtype=torch.float32)
        low, high = _ends(values, show)
        shares = (values - low) / (high - low)
        size = tuple(images.shape[1:3]) if images is not None else tuple(side * _PIXELS for side in trace.grid)
        masks = F.interpolate(shares.clamp(0, 1)[:, None], size=size, mode="nearest")[:, 0]
        maps = torch.from_numpy(scale()).float()[(masks * 255).round().long()] / 255
        if images is not None:
            maps = torch.lerp(images[..., :3].float(), maps.to(images.device), opacity)
        return io.NodeOutput(maps, masks)


def _ends(values: torch.Tensor, show: str) -> tuple[float, float]:
    """The scale's ends, as in the sampler's widget; a few slow tokens, as the first one is, don't stretch it."""
    low = 1.0 if show == "acceptance" else 0.0
    top = float(values.flatten().quantile(0.98) if show == "time" else values.max())
    return low, max(top, low + (0.01 if show == "time" else 1.0))


class ADTTreeFigures(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeFigures",
            display_name="ADT-Tree Run Figures",
            category=CATEGORY,
            description="A run's figures as text to read, and as JSON with every setting for other tools.",
            search_aliases=["statistics", "report", "tau", "tokens per second"],
            inputs=[TraceSocket.Input("trace", tooltip="What an ADT-Tree Sampler drafted and accepted.")],
            outputs=[
                io.String.Output(display_name="text", tooltip="The figures in a few lines."),
                io.String.Output(display_name="json", tooltip="The figures and settings as one JSON object."),
            ],
        )

    @classmethod
    def execute(cls, trace: Trace) -> io.NodeOutput:
        report = trace.report()
        return io.NodeOutput(_lines(report), json.dumps(report))


def _lines(report: dict) -> str:
    lines = [
        f"{report['method']}, seed {report['seed']}, {report['dtype']} on {report['device']}",
        f"{report['tokens']} tokens in {report['seconds']:.2f} s: {report['tokens_per_second']:.1f} a second",
        f"{report['target_forwards']} passes of the model, {report['tau']:.2f} tokens per image in each",
    ]
    if report["verified_nodes"]:
        lines.append(f"trees {report['mean_depth']:.2f} deep with {report['mean_nodes']:.2f} drafts on average")
        lines.append(f"{100 * report['drafting_seconds'] / report['seconds']:.0f} % of the time spent on drafting")
    if report["lantern"]:
        lines.append(f"{100 * report['substitution_rate']:.1f} % of the tokens replaced by look-alikes")
    return "\n".join(lines)
