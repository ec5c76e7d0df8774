"""Node schemas, whose tooltips are read from the help pages, so that each input and output is described once.

A page, `js/docs/<node id>/en.md`, ends in two tables, "## Inputs" and "## Outputs". The first column is the name that
users see, in backquotes: the display name, or the id of an input that has none. The second column is the tooltip.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from comfy_api.v0_0_2 import io

from ..adt_core.rules.settings import Option
from .renamed import RENAMED, Values

CATEGORY = "ADT-Tree"
IMAGE_TOKENS = ("image tokens", "vqgan", "vq-vae", "图像 token")
"""Search terms for models of this kind, in any language; ComfyUI's node search matches them literally."""
_PAGES = Path(__file__).parents[1] / "js" / "docs"


class _LowerBound(float):
    """Lower bound of a number that also rejects NaN, which would pass ComfyUI's comparison."""

    def __gt__(self, value: float) -> bool:
        return not value >= float(self)


def schema(node_id: str, display_name: str, *, inputs: list, outputs: list, **more) -> io.Schema:
    """Return the schema of a node of this pack, with missing tooltips from the node's help page.

    An input with a default is optional, so API clients may omit it. The frontend keeps the order of the widgets as long
    as each has a default.

    Args:
        node_id: Id of the node, which is also the name of its help folder.
        display_name: Title of the node.
        inputs: Inputs of the node.
        outputs: Outputs of the node.
        **more: Further arguments of `io.Schema`.

    Raises:
        KeyError: If the page has no row for an input or an output.
    """
    on_page = _tooltips(node_id)
    for plug in inputs:
        plug.tooltip = plug.tooltip or on_page["Inputs"][plug.display_name or plug.id]
        plug.optional = plug.optional or default(plug) is not None
        if isinstance(plug, io.Float.Input):
            plug.min = _LowerBound(plug.min)
        if isinstance(plug, io.Combo.Input) and plug.id in RENAMED:
            plug.options = Values.of(plug.id, plug.options)
            plug.extra_dict["renamed"] = RENAMED[plug.id]
    for plug in outputs:
        plug.tooltip = plug.tooltip or on_page["Outputs"][plug.display_name]
    return io.Schema(node_id, display_name, CATEGORY, inputs, outputs, **more)


def widget(name: str, option: Option, **more: Any) -> io.Input:
    """Return the input for a setting, by its kind and bounds.

    Args:
        name: Id of the input.
        option: The setting.
        **more: Further arguments of the input, which override those from `option`.
    """
    if option.choices:
        return io.Combo.Input(name, list(option.choices), default=option.default, **more)
    numbers = {"default": option.default, "min": option.low, "max": option.high, **more}
    return io.Int.Input(name, **numbers) if option.kind is int else io.Float.Input(name, step=option.step, **numbers)


def default(plug: io.Input) -> Any:
    """Return the default of an input, or None if it has none."""
    return getattr(plug, "default", None)


@cache
def _tooltips(node_id: str) -> dict[str, dict[str, str]]:
    """Return the tables of a help page: title of the section -> name of the row -> tooltip, without asterisks.

    The result is cached, because ComfyUI requests schemas for every prompt.
    """
    page = (_PAGES / node_id / "en.md").read_text(encoding="utf-8").replace("*", "")
    sections = (section.split("\n", 1) for section in page.split("\n## ")[1:])
    return {title: dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.M)) for title, text in sections}
