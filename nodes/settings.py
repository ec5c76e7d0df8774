"""Settings node for drafting. Its inputs are the options of `adt_core.policies`, with their help as tooltips.

The method is a preset, for which js/settings.js shows a label, and the only input that is not advanced. A number of 0
means automatic: the value depends on the drafter and the device.
"""

from functools import partial

from comfy_api.v0_0_2 import io

from ..adt_core.policies import DEFAULT, POLICIES, Drafting, options
from ..adt_core.rules.settings import Option
from .runtime import refusal
from .schema import schema, widget
from .sockets import SettingsSocket

UNCHOSEN = "0: what suits drafter and device."
"""End of the tooltip of every number whose default depends on the drafter and the device."""


class ADTTreeSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        # Workflows save values by position. The inputs have the order of the table of options, which only grows at its
        # end.
        return schema(
            "ADTTreeSettings",
            "ADT-Tree Settings",
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
        """Reject a minimum above its maximum before any node runs, and ignore bounds that are 0."""
        most = options()["depth_max"].high
        lows = {"depth_min": depth_min or 1, "width_min": width_min or 1}
        highs = {"depth_max": depth_max or most, "width_max": width_max or most}
        return refusal(partial(Drafting, "adt-tree"), **lows, **highs)

    @classmethod
    def execute(cls, method: str = DEFAULT, **values) -> io.NodeOutput:
        return io.NodeOutput({"method": method, **{name: value for name, value in values.items() if value != 0}})


def _input(name: str, option: Option) -> io.Input:
    """Return the widget for an option. Numbers default to 0, which means automatic."""
    if option.choices:
        return widget(name, option, tooltip=option.help, advanced=True)
    tooltip = option.help + (f" {UNCHOSEN}" if option.default else "")
    unchosen = option._replace(default=option.kind(0), low=option.kind(0))
    return widget(name, unchosen, tooltip=tooltip, advanced=True)
