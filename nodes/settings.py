"""Settings node for drafting. Its inputs are the options of `adt_core.policies`, with their help as tooltips.

The input `method` is the only one that is not advanced. js/settings.js shows a label for each method. In the number
inputs, 0 means automatic: the value depends on the drafter and the device.
"""

from functools import partial

from comfy_api.v0_0_2 import io

from ..adt_core import Drafting
from ..adt_core.policies import DEFAULT, POLICIES, options
from ..adt_core.settings import Option
from .comfy_runtime import refusal
from .schema import Tooltips, schema, widget
from .sockets import SettingsSocket, with_warning

UNCHOSEN = "0: what suits drafter and device."
"""End of the tooltip of every number whose default depends on the drafter and the device."""


_SETTINGS_TOOLTIPS = Tooltips(
    inputs={
        "method": "Auto: the number of drafts that is fastest on this device; recommended. ADT-Tree: the adaptive "
        "tree of the ADT-Tree paper, deeper where the image is easy to predict and wider where it is hard. EAGLE-2: "
        "the tree of the EAGLE-2 paper, with the same shape everywhere. No drafting, one token per pass of the model, "
        "as a baseline. Static: a published tree with the same nodes everywhere, as a baseline.",
        "proposal": "coupled: draft with the noise that the model samples with, so far more drafts are accepted. "
        "top-k: draft the most probable tokens, as in the EAGLE-2 and ADT-Tree papers.",
        "depth": "Levels of the tree (ADT-Tree: at the start); with jacobi, the length of its window. 0: what suits "
        "drafter and device.",
        "width": "Branches per level of the tree (ADT-Tree: at the start); with jacobi, drafts per token. 0: what "
        "suits drafter and device.",
        "drafts": "Maximum number of drafts that one pass of the model verifies. 0: what suits drafter and device.",
        "init": "ADT-Tree: neighbours that a tree's shape follows: the token to the left (horizontal), the token above "
        "(vertical), both, or none (random).",
        "wrap": "ADT-Tree with horizontal init: initial shape in a new row: copied from the end of the previous row "
        "(carry), from the token above (vertical), or the given depth and width (reset).",
        "beta": "ADT-Tree: if at least this share of a tree's levels is accepted, the next tree is deeper and "
        "narrower. 0: what suits drafter and device.",
        "depth_step": "ADT-Tree: levels added or removed at a time. 0: what suits drafter and device.",
        "width_step": "ADT-Tree: branches added or removed at a time. 0: what suits drafter and device.",
        "depth_min": "ADT-Tree: minimum levels of a tree. 0: what suits drafter and device.",
        "depth_max": "ADT-Tree: maximum levels of a tree. 0: what suits drafter and device.",
        "width_min": "ADT-Tree: minimum branches per level. 0: what suits drafter and device.",
        "width_max": "ADT-Tree: maximum branches per level. 0: what suits drafter and device.",
        "expand_above": "Stop drafting below a node that is less probable than this; 0 is off.",
        "keep_above": "Do not verify drafts that are less probable than this; 0 is off.",
        "rule": "ADT-Tree: how a tree's shape follows from earlier rounds. paper: one step deeper and narrower, or "
        "shallower and wider. predicted: as deep as the expected number of accepted drafts, divided by beta.",
    },
    outputs={
        "settings": "The settings, for the ADT-Tree Sampler.",
    },
)


class ADTTreeSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        # Workflows save values by position. The inputs have the order of `options`. New options are appended there, so
        # that saved values keep their positions.
        return schema(
            "ADTTreeSettings",
            "ADT-Tree Settings",
            tooltips=_SETTINGS_TOOLTIPS,
            description="Sets how the sampler drafts: the number of drafts per pass and the shape of their tree. "
            "Without LANTERN this changes the speed, not the image.",
            search_aliases=["draft tree", "speculative decoding", "草稿树", "推测解码"],
            inputs=[
                io.Combo.Input("method", options=list(POLICIES), default=DEFAULT),
                *(_input(name, option) for name, option in options().items()),
            ],
            outputs=[SettingsSocket.Output(display_name="settings")],
        )

    @classmethod
    def validate_inputs(
        cls, depth_min: int = 0, depth_max: int = 0, width_min: int = 0, width_max: int = 0
    ) -> bool | str:
        """Before any node runs, reject a minimum that is larger than its maximum. A bound of 0 is not checked."""
        most = options()["depth_max"].high
        lows = {"depth_min": depth_min or 1, "width_min": width_min or 1}
        highs = {"depth_max": depth_max or most, "width_max": width_max or most}
        return refusal(partial(Drafting, "adt-tree"), **lows, **highs)

    @classmethod
    def execute(cls, method: str = DEFAULT, **values) -> io.NodeOutput:
        given = {name: value for name, value in values.items() if value != 0}
        return with_warning(cls, io.NodeOutput({"method": method, **given}))


def _input(name: str, option: Option) -> io.Input:
    """Return the widget for an option. Numbers default to 0, which means automatic."""
    if option.choices:
        return widget(name, option, tooltip=option.help, advanced=True)
    tooltip = option.help + (f" {UNCHOSEN}" if option.default else "")
    unchosen = option._replace(default=option.kind(0), low=option.kind(0))
    return widget(name, unchosen, tooltip=tooltip, advanced=True)
