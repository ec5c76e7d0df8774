"""The LANTERN node: relaxed acceptance, which changes the image within bounds that its inputs set."""

from comfy_api.v0_0_2 import io

from ..adt_core.rules.verify import Lantern
from .schema import schema
from .sockets import LanternSocket, checked

LANTERN, LANTERN_PLUS = "delta (LANTERN)", "lambda (LANTERN++)"


class ADTTreeLantern(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            "ADTTreeLantern",
            "ADT-Tree LANTERN",
            description="Lets a guess pass for a token that looks like it: this may be faster still, and the image is "
            "no longer exactly that of the seed. How many tokens were replaced is in the trace; the cap here is never "
            "exceeded.",
            search_aliases=["relaxed acceptance", "speculative decoding", "放宽接受", "推测解码"],
            inputs=[
                io.Combo.Input("rule", options=[LANTERN, LANTERN_PLUS], default=LANTERN),
                io.Int.Input("neighbours", default=100, min=1, max=65536),
                io.Float.Input("delta", default=0.1, min=0.0, max=1.0, step=0.01),
                io.Float.Input("factor", default=2.0, min=1.0, max=1000.0, step=0.1),
                io.Float.Input("max_substitution", default=1.0, min=0.0, max=1.0, step=0.01),
            ],
            outputs=[LanternSocket.Output(display_name="lantern")],
        )

    @classmethod
    @checked
    def execute(cls, rule: str, neighbours: int, delta: float, factor: float, max_substitution: float) -> io.NodeOutput:
        return io.NodeOutput(Lantern(neighbours, delta, factor if rule == LANTERN_PLUS else None, max_substitution))
