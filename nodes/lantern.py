"""LANTERN node: relaxed acceptance, which changes the image within the bounds that its inputs set."""

from comfy_api.v0_0_2 import io

from ..adt_core.rules.settings import Lantern
from .schema import schema, widget
from .sockets import LanternSocket, checked

LANTERN, LANTERN_PLUS = "delta (LANTERN)", "lambda (LANTERN++)"
_NAMES = {"neighbours": None, "delta": None, "factor": "lambda", "max_substitution": "max_replaced"}
"""Input -> display name, if it has another."""


class ADTTreeLantern(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        own = Lantern.fields()
        own["factor"] = own["factor"]._replace(default=2.0)  # used only by LANTERN++
        return schema(
            "ADTTreeLantern",
            "ADT-Tree LANTERN",
            description="Relaxes acceptance: a draft may replace a token that looks like it. This can be faster, and "
            "changes the image. The share of replaced tokens is limited and reported.",
            search_aliases=["relaxed acceptance", "speculative decoding", "放宽接受", "推测解码"],
            inputs=[
                io.Combo.Input("rule", options=[LANTERN, LANTERN_PLUS], default=LANTERN),
                *(widget(name, own[name], display_name=shown) for name, shown in _NAMES.items()),
            ],
            outputs=[LanternSocket.Output(display_name="lantern")],
        )

    @classmethod
    @checked
    def execute(cls, rule: str, neighbours: int, delta: float, factor: float, max_substitution: float) -> io.NodeOutput:
        return io.NodeOutput(Lantern(neighbours, delta, factor if rule == LANTERN_PLUS else None, max_substitution))
