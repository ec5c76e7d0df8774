"""A node's schema, with the words of its help page: what an input or an output does is said there, and nowhere else.

A page, ``js/docs/<node id>/en.md``, ends in two tables. The rows of "## Inputs" begin with the id of an input, those of
"## Outputs" with the display name of an output, in backquotes; the second column is the tooltip.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from comfy_api.v0_0_2 import io

from ..adt_core.rules.settings import Option

CATEGORY = "ADT-Tree"
IMAGE_TOKENS = ("image tokens", "vqgan", "vq-vae", "图像 token")
"""What people search for who look for models of this kind; a search finds words of any language, as they are typed."""
_PAGES = Path(__file__).parents[1] / "js" / "docs"


class _Least(float):
    """The lower bound of a number: NaN lies below it too, which ComfyUI's comparison would let pass."""

    def __gt__(self, value: float) -> bool:
        return not value >= float(self)


def schema(node_id: str, display_name: str, *, inputs: list, outputs: list, **more) -> io.Schema:
    """The schema of a node of this pack. Inputs and outputs without a tooltip get theirs from the node's page.

    An input that has a default is optional: who calls the API may leave it out. The page makes its widgets in this
    order all the same, as long as each has a default.

    more: what else ``io.Schema`` takes. Raises KeyError for an input or an output that the page does not have.
    """
    on_page = _tooltips(node_id)
    for plug in inputs:
        plug.tooltip = plug.tooltip or on_page["Inputs"][plug.id]
        plug.optional = plug.optional or default(plug) is not None
        if isinstance(plug, io.Float.Input):
            plug.min = _Least(plug.min)
    for plug in outputs:
        plug.tooltip = plug.tooltip or on_page["Outputs"][plug.display_name]
    return io.Schema(node_id, display_name, CATEGORY, inputs, outputs, **more)


def widget(name: str, option: Option, **more: Any) -> io.Input:
    """The input for a setting, by its kind and bounds.

    more: what else the input takes. A tooltip that is not among it is that of the node's page.
    """
    if option.choices:
        return io.Combo.Input(name, list(option.choices), default=option.default, **more)
    numbers = {"default": option.default, "min": option.low, "max": option.high, **more}
    return io.Int.Input(name, **numbers) if option.kind is int else io.Float.Input(name, step=option.step, **numbers)


def default(plug: io.Input) -> Any:
    """What an input is where it is left out; None if nothing is said of it."""
    return getattr(plug, "default", None)


@cache
def _tooltips(node_id: str) -> dict[str, dict[str, str]]:
    """Title of a section of the page -> its rows, by name, without the page's asterisks: tooltips are plain text.

    Read once: ComfyUI asks for schemas again and again.
    """
    page = (_PAGES / node_id / "en.md").read_text(encoding="utf-8").replace("*", "")
    sections = (section.split("\n", 1) for section in page.split("\n## ")[1:])
    return {title: dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.M)) for title, text in sections}
