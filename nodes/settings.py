"""The settings node: how to draft. The constants' defaults and limits are those of ``adt_core.Drafting``."""

from dataclasses import fields

from comfy_api.v0_0_2 import io

from .. import adt_core
from ..adt_core.errors import AdtError
from .loaders import CATEGORY
from .sockets import SettingsSocket

_METHODS = ["adt-tree", "eagle2", "autoregressive"]
_PROPOSALS = ["coupled", "top-k"]
_STARTS = ["horizontal", "vertical", "random"]
_AUTOMATIC = ("depth", "width", "nodes")  # 0 in the widget stands for the method's own value


class ADTTreeSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        default = {field.name: field.default for field in fields(adt_core.Drafting)}

        def whole(name: str, most: int, tooltip: str, advanced: bool = True) -> io.Int.Input:
            least = 0 if name in _AUTOMATIC else 1
            return io.Int.Input(name, default=default[name] or least, min=least, max=most, tooltip=tooltip, advanced=advanced)

        def real(name: str, most: float, step: float, tooltip: str) -> io.Float.Input:
            return io.Float.Input(name, default=default[name], min=0.0, max=most, step=step, tooltip=tooltip, advanced=True)

        return io.Schema(
            node_id="ADTTreeSettings",
            display_name="ADT-Tree Settings",
            category=CATEGORY,
            description="How the sampler drafts: which tree of guesses it builds and how the tree follows the image. None of this "
            "changes the image, only the time that it takes.",
            search_aliases=["draft tree", "speculative decoding"],
            inputs=[
                io.Combo.Input(
                    "method",
                    options=_METHODS,
                    default=default["method"],
                    tooltip="adt-tree: the tree gets deeper where the image is easy and wider where it is hard. eagle2: the same "
                    "depth and width everywhere. autoregressive: no drafting, one token per pass, for comparison.",
                ),
                io.Combo.Input(
                    "proposal",
                    options=_PROPOSALS,
                    default=default["proposal"],
                    tooltip="coupled: guess with the noise that the model will draw with, which agrees far more often. top-k: guess "
                    "the likeliest tokens, as the EAGLE-2 and ADT-Tree papers do.",
                ),
                whole("depth", 64, "Levels of the tree (where ADT-Tree starts); 0 leaves it to the method.", advanced=False),
                whole("width", 64, "Branches kept per level (where ADT-Tree starts); 0 leaves it to the method.", advanced=False),
                whole("nodes", 1024, "Guesses checked in one pass of the model; 0 leaves it to the method.", advanced=False),
                io.Combo.Input(
                    "init",
                    options=_STARTS,
                    default=default["init"],
                    advanced=True,
                    tooltip="ADT-Tree: whose tree the next token starts from: its left neighbour's, the one above, or a random one.",
                ),
                io.Boolean.Input(
                    "wrap",
                    default=default["wrap"],
                    advanced=True,
                    tooltip="ADT-Tree: at the start of a row, go on from the end of the row before instead of from what lies above.",
                ),
                real("beta", 1.0, 0.01, "ADT-Tree: share of accepted guesses above which the tree gets deeper, and below which it gets wider."),
                whole("depth_step", 16, "ADT-Tree: levels added or taken away at a time."),
                whole("width_step", 16, "ADT-Tree: branches added or taken away at a time."),
                whole("depth_min", 64, "ADT-Tree: the shallowest tree."),
                whole("depth_max", 64, "ADT-Tree: the deepest tree."),
                whole("width_min", 64, "ADT-Tree: the narrowest tree."),
                whole("width_max", 64, "ADT-Tree: the widest tree."),
                real("min_score", 1.0, 0.001, "Drop guesses that the drafter believes in less than this; 0 keeps all."),
            ],
            outputs=[SettingsSocket.Output(display_name="settings", tooltip="The settings, for the ADT-Tree Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, beta: float = None, min_score: float = None) -> bool | str:
        """Refuse what no widget can hold but the API can send, such as NaN; linked inputs arrive as None."""
        given = {"beta": beta, "min_score": min_score}
        try:
            adt_core.Drafting(**{name: value for name, value in given.items() if value is not None})
        except AdtError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, **values) -> io.NodeOutput:
        return io.NodeOutput(adt_core.Drafting(**{name: value for name, value in values.items() if value or name not in _AUTOMATIC}))
