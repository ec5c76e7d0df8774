"""The settings node: how to draft. Defaults, choices and limits are those of ``adt_core.Drafting``."""

from dataclasses import fields

from comfy_api.v0_0_2 import io

from ..adt_core.policies.shape import INITS, METHODS, PROPOSALS, WRAPS, Drafting
from .loaders import CATEGORY
from .runtime import refusal
from .sockets import SettingsSocket

_DEFAULTS = {field.name: field.default for field in fields(Drafting)}


class ADTTreeSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        # New inputs go last: a saved workflow names widget values by their position.
        return io.Schema(
            node_id="ADTTreeSettings",
            display_name="ADT-Tree Settings",
            category=CATEGORY,
            description="How the sampler drafts: which tree of guesses it builds, and how the tree follows the image. None of this "
            "changes the image, only the time that it takes.",
            search_aliases=["draft tree", "speculative decoding"],
            inputs=[
                _choice(
                    "method",
                    METHODS,
                    "adt-tree: the tree gets deeper where the image is easy and wider where it is hard. eagle2: the same shape "
                    "everywhere. auto: as many guesses as pay on this device. autoregressive: no drafting, one token per pass of the model, for comparison.",
                ),
                _choice(
                    "proposal",
                    PROPOSALS,
                    "coupled: guess with the noise that the model will draw with, which hits far more often. top-k: guess the "
                    "likeliest tokens, as the EAGLE-2 and ADT-Tree papers do.",
                ),
                _whole("depth", "Levels of the tree; where ADT-Tree starts."),
                _whole("width", "Branches kept per level; where ADT-Tree starts."),
                _whole("nodes", "Guesses that one pass of the model checks, at most."),
                _choice(
                    "init",
                    INITS,
                    "ADT-Tree: whose shape a tree starts from: that of the token to the left (horizontal), of the one above (vertical), or a random one.",
                    advanced=True,
                ),
                _choice(
                    "wrap",
                    WRAPS,
                    "ADT-Tree with horizontal init: what a new row starts from: the end of the row before (carry), the token "
                    "above (vertical), or the depth and width set here (reset).",
                    advanced=True,
                ),
                _share(
                    "beta",
                    "ADT-Tree: when at least this share of a tree's levels was accepted, the next one is deeper and narrower.",
                ),
                _whole("depth_step", "ADT-Tree: levels added or taken away at a time.", advanced=True),
                _whole("width_step", "ADT-Tree: branches added or taken away at a time.", advanced=True),
                _whole("depth_min", "ADT-Tree: levels of the shallowest tree.", advanced=True),
                _whole("depth_max", "ADT-Tree: levels of the deepest tree.", advanced=True),
                _whole("width_min", "ADT-Tree: branches of the narrowest tree.", advanced=True),
                _whole("width_max", "ADT-Tree: branches of the widest tree.", advanced=True),
                _share(
                    "expand_above", "Guess no further below a node that is less probable than this; 0 switches it off."
                ),
                _share("keep_above", "Do not check a guess that is less probable than this; 0 switches it off."),
            ],
            outputs=[SettingsSocket.Output(display_name="settings", tooltip="The settings, for the ADT-Tree Sampler.")],
        )

    @classmethod
    def validate_inputs(cls, depth_min: int, depth_max: int, width_min: int, width_max: int) -> bool | str:
        """Bounds that cross are refused before anything runs."""
        return refusal(Drafting, depth_min=depth_min, depth_max=depth_max, width_min=width_min, width_max=width_max)

    @classmethod
    def execute(cls, **values) -> io.NodeOutput:
        return io.NodeOutput(Drafting(**values))


def _choice(name: str, options: tuple[str, ...], tooltip: str, advanced: bool = False) -> io.Combo.Input:
    return io.Combo.Input(name, options=list(options), default=_DEFAULTS[name], tooltip=tooltip, advanced=advanced)


def _whole(name: str, tooltip: str, advanced: bool = False) -> io.Int.Input:
    return io.Int.Input(name, default=_DEFAULTS[name], min=1, max=256, tooltip=tooltip, advanced=advanced)


def _share(name: str, tooltip: str) -> io.Float.Input:
    return io.Float.Input(name, default=_DEFAULTS[name], min=0.0, max=1.0, step=0.01, tooltip=tooltip, advanced=True)
