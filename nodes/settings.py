"""Settings node for drafting. Its inputs are the options of `adt_core.policies`, with their help as tooltips.

The input `method` is the only one that is not advanced. js/theme.js shows a label for each method. In the number
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
        "as a baseline. Static: a published tree with the same nodes everywhere, as a baseline. Predicted: a tree as "
        "deep as the number of drafts that will probably be accepted. With Auto, the sampler's drafting decides.",
        "proposal": "coupled: draft with the noise that the model samples with, so far more drafts are accepted. "
        "top-k: draft the most probable tokens, as in the EAGLE-2 and ADT-Tree papers.",
        "depth": "Levels of the tree (ADT-Tree: at the start); with jacobi, the length of its window. 0: what suits "
        "drafter and device.",
        "width": "Branches per level of the tree (ADT-Tree: at the start); with jacobi, drafts per token. 0: what "
        "suits drafter and device.",
        "drafts": "Maximum number of drafts that one pass of the model verifies. 0: what suits drafter and device.",
        "beta": "Adaptive trees: share of a tree's levels that should be accepted; a larger share makes trees "
        "shallower. 0: what suits drafter and device.",
        "depth_min": "Adaptive trees: minimum levels of a tree. 0: what suits drafter and device.",
        "depth_max": "Adaptive trees: maximum levels of a tree. 0: what suits drafter and device.",
        "width_min": "Adaptive trees: minimum branches per level. 0: what suits drafter and device.",
        "width_max": "Adaptive trees: maximum branches per level. 0: what suits drafter and device.",
        "init": "ADT-Tree: shape that a tree starts from, before it moves by the acceptance of the previous tree: that "
        "of the tree of the token to the left (horizontal) or above (vertical), or a random shape for the first tree "
        "(random).",
        "wrap": "ADT-Tree with horizontal or random init: shape that the first tree of a row starts from: that of the "
        "previous tree (carry), that of the token above (vertical), or the shape of the first tree of an image "
        "(reset).",
        "depth_step": "ADT-Tree: levels added or removed at a time. 0: what suits drafter and device.",
        "width_step": "ADT-Tree: branches added or removed at a time. 0: what suits drafter and device.",
        "expand_above": "Stop drafting below a node that is less probable than this; 0 is off.",
        "keep_above": "Do not verify drafts that are less probable than this; 0 is off.",
        "predict_from": "Predicted: rounds that predict the next one, besides the mean of the image: the last round "
        "(left), the rounds of the tokens above, or both.",
    },
    outputs={"settings": "The settings, for the ADT-Tree Sampler."},
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
