"""The LANTERN node: relaxed acceptance, which changes the image by a stated amount."""

from comfy_api.v0_0_2 import io

from ..adt_core.rules.verify import Lantern
from .loaders import CATEGORY
from .runtime import refusal
from .sockets import LanternSocket

LANTERN, LANTERN_PLUS = "delta (LANTERN)", "lambda (LANTERN++)"


class ADTTreeLantern(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ADTTreeLantern",
            display_name="ADT-Tree LANTERN",
            category=CATEGORY,
            description="Lets a guess pass for a token that looks like it: faster still, and no longer exactly the image of the seed. "
            "How many tokens were replaced is in the trace; the cap here is never exceeded.",
            search_aliases=["relaxed acceptance", "speculative decoding"],
            inputs=[
                io.Combo.Input(
                    "rule",
                    options=[LANTERN, LANTERN_PLUS],
                    default=LANTERN,
                    tooltip="What bounds the look-alikes of a guess: a fixed share of probability per token (LANTERN), or a multiple of "
                    "the guess's own (LANTERN++).",
                ),
                io.Int.Input(
                    "neighbours",
                    default=100,
                    min=1,
                    max=65536,
                    tooltip="Nearest tokens of the codebook that count as look-alikes.",
                ),
                io.Float.Input(
                    "delta",
                    default=0.1,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="LANTERN: probability moved per token; 0 is exact.",
                ),
                io.Float.Input(
                    "factor", default=2.0, min=1.0, max=1000.0, step=0.1, tooltip="LANTERN++: lambda; 1 is exact."
                ),
                io.Float.Input(
                    "max_substitution",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Share of an image's tokens that may be replaced at most; 1 sets no limit.",
                ),
            ],
            outputs=[
                LanternSocket.Output(display_name="lantern", tooltip="Relaxed acceptance, for the ADT-Tree Sampler.")
            ],
        )

    @classmethod
    def validate_inputs(cls, delta: float = None, factor: float = None, max_substitution: float = None) -> bool | str:
        return refusal(Lantern, delta=delta, factor=factor, max_substitution=max_substitution)

    @classmethod
    def execute(cls, rule: str, neighbours: int, delta: float, factor: float, max_substitution: float) -> io.NodeOutput:
        return io.NodeOutput(Lantern(neighbours, delta, factor if rule == LANTERN_PLUS else None, max_substitution))
