"""LANTERN node: relaxed acceptance, which changes the image. The inputs of the node limit the change."""

from comfy_api.v0_0_2 import io

from ..adt_core import Lantern
from .schema import Tooltips, schema, widget
from .sockets import LanternSocket, checked

LANTERN, LANTERN_PLUS = "delta (LANTERN)", "factor (LANTERN++)"

_LANTERN_TOOLTIPS = Tooltips(
    inputs={
        "rule": "Limit of a draft: a fixed probability per token (LANTERN), or a multiple of the draft's probability "
        "(LANTERN++).",
        "neighbours": "Number of nearest codebook tokens that count as similar.",
        "delta": "LANTERN: probability that may be moved per token. Larger is faster and less faithful; 0 is exact.",
        "factor": "LANTERN++: limit of a draft, as a multiple of its probability (lambda in the paper). 1 is exact.",
        "max_replaced": "Maximum share of an image's tokens that may be replaced. 1 sets no limit.",
    },
    outputs={"lantern": "Relaxed acceptance, for the ADT-Tree Sampler."},
)


class ADTTreeLANTERN(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        own = Lantern.fields()
        own["factor"] = own["factor"]._replace(default=2.0)  # used only by LANTERN++
        return schema(
            "ADTTreeLANTERN",
            "ADT-Tree LANTERN",
            tooltips=_LANTERN_TOOLTIPS,
            description="Relaxes acceptance: a draft may replace a token that looks like it. This can be faster, and "
            "changes the image. The share of replaced tokens is limited and reported.",
            search_aliases=["relaxed acceptance", "speculative decoding", "放宽接受", "推测解码"],
            inputs=[
                io.Combo.Input("rule", options=[LANTERN, LANTERN_PLUS], default=LANTERN),
                *(widget(name, own[name]) for name in ("neighbours", "delta", "factor")),
                widget("max_replaced", own["max_substitution"]),
            ],
            outputs=[LanternSocket.Output(display_name="lantern")],
        )

    @classmethod
    @checked
    def execute(cls, rule: str, neighbours: int, delta: float, factor: float, max_replaced: float) -> io.NodeOutput:
        return io.NodeOutput(Lantern(neighbours, delta, factor if rule == LANTERN_PLUS else None, max_replaced))
