"""Node schemas with tooltips. `help_tables` makes the tables of a node's help page from its schema."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from comfy_api.v0_0_2 import io

from ..adt_core.settings import Option

CATEGORY = "ADT-Tree"
IMAGE_TOKENS = ("image tokens", "vqgan", "vq-vae", "图像 token")
"""Search terms for models of image tokens, in English and Chinese. ComfyUI's node search matches terms literally."""

TOOLTIPS = {
    "positive": "The prompt, from a CLIP Text Encode node that uses this model's CLIP.",
    "guidance": "How strongly the image follows the prompt (classifier-free guidance, CFG). 1 switches guidance off.",
    "temperature": "Randomness of sampling. 1 samples as the model was trained, lower values are more "
    "conservative, 0 always picks the most likely token.",
    "top_k": "Sample from the k most likely tokens only. 0 keeps all tokens.",
    "top_p": "Sample only from the most likely tokens whose probabilities add up to this value. 1 keeps all tokens.",
    "drafter": "Drafts tokens ahead of the model. If not connected, the node uses the first installed drafter "
    "that fits the model, or the Jacobi window, which needs no files.",
    "settings": "Options for drafting, from an ADT-Tree Settings node. If not connected, drafting decides.",
    "drafting": "Auto: the fastest method for this device. ADT-Tree, EAGLE-2: as in the papers. These and No drafting "
    "give the same image. + LANTERN: faster, with the model's published values; changes the image (bundled model: "
    "7 to 11 % of the tokens).",
    "preset": "model default uses the guidance, temperature, top_k and top_p that are published with the model. "
    "custom uses the values that you set here.",
    "invalid_prompts": "A prompt that is too long for the model. error: stop with an error that names the limit "
    "in tokens. truncate: use as many words as fit; a message below the node gives their number.",
}
"""Tooltips of inputs with the same meaning in several nodes, by id. A node can have its own."""


NUMBERS = {"guidance": "guidance_scale", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p"}
"""Input id of each sampling parameter that a preset determines -> field of `Sampling`."""


class Tooltips(NamedTuple):
    """Tooltips of a node, by the id of the input or the display name of the output.

    Attributes:
        inputs: Tooltips of inputs that do not define their own and are not in `TOOLTIPS`.
        outputs: Tooltips of outputs.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class _LowerBound(float):
    """Lower bound of a float input that also rejects NaN.

    ComfyUI rejects a value if `value < bound`. If the bound is a plain float, the comparison is False for NaN. If the
    bound is of this class, Python calls `bound.__gt__(value)`, which is True for NaN.
    """

    def __gt__(self, value: float) -> bool:
        return not value >= float(self)


def schema(node_id: str, display_name: str, *, tooltips: Tooltips, inputs: list, outputs: list, **more) -> io.Schema:
    """Return the schema of a node of this pack.

    Every input with a default is made optional, so API clients may omit it. The frontend shows required widgets before
    optional widgets. All widgets have a default, so all widgets are optional and stay in the order of `inputs`.

    Args:
        node_id: Id of the node, which is also the name of its help folder.
        **more: Further arguments of `io.Schema`.

    Raises:
        KeyError: If an input or an output has no tooltip.
    """
    for plug in inputs:
        plug.tooltip = plug.tooltip or tooltips.inputs.get(plug.id) or TOOLTIPS[plug.id]
        plug.optional = plug.optional or default(plug) is not None
        if isinstance(plug, io.Float.Input):
            plug.min = _LowerBound(plug.min)
    for plug in outputs:
        plug.tooltip = plug.tooltip or tooltips.outputs[plug.display_name]
    # Every node needs these two to name ignored inputs, see `with_warning` in sockets.py.
    hidden = list(dict.fromkeys([*more.pop("hidden", []), io.Hidden.unique_id, io.Hidden.prompt]))
    return io.Schema(node_id, display_name, CATEGORY, inputs, outputs, hidden=hidden, **more)


def widget(name: str, option: Option, **more: Any) -> io.Input:
    """Return the input for a setting: a combo if it has choices, else a number with its bounds; `more` overrides."""
    if option.choices:
        return io.Combo.Input(name, list(option.choices), default=option.default, **more)
    numbers = {"default": option.default, "min": option.low, "max": option.high, **more}
    return io.Int.Input(name, **numbers) if option.kind is int else io.Float.Input(name, step=option.step, **numbers)


def default(plug: io.Input) -> Any:
    """Return the default of an input, or None if it has none."""
    return getattr(plug, "default", None)


def input_ids(node: type[io.ComfyNode]) -> list[str]:
    """Return the ids of a node's inputs, without hidden inputs."""
    return [plug.id for plug in node.define_schema().inputs]


def help_tables(schema: io.Schema) -> str:
    """Return the sections "Inputs" and "Outputs" at the end of a node's help page, `js/docs/<node id>/en.md`."""
    rows = {
        "Inputs": [(plug.id, plug.tooltip) for plug in schema.inputs],
        "Outputs": [(plug.display_name, plug.tooltip) for plug in schema.outputs],
    }
    tables = (
        f"## {title}\n\n| {title[:-1]} | Description |\n|---|---|\n"
        + "".join(f"| `{name}` | {tooltip} |\n" for name, tooltip in rows[title])
        for title in rows
        if rows[title]
    )
    return "\n".join(tables)
