"""Values of combo inputs that have a new name. Saved workflows and API prompts may still use the old one.

A combo accepts both, lists the new one only, and tells the page (``renamed`` in /object_info) what to show for the old
one; ``sockets.checked`` hands the new one to the node.
"""

from typing import Any

RENAMED = {
    "choices": {"one by chance": "random", "as written": "off"},
    "noise": {"own": "ADT-Tree", "upstream": "original script"},
    "preset": {"model's own": "model default"},
    "seed_of_each": {"the same": "same", "seed + place in the list": "increment"},
    "speed": {"Plain": "No drafting"},
    "text_encoder": {"beside the transformer": "same folder as transformer"},
    "unfit_prompts": {"stop": "error", "cut": "truncate"},
    "vae": {"beside the transformer": "same folder as transformer"},
}
"""Input id -> old value -> new value."""


class Values(list):
    """Values that a combo lists. Old names are valid, too: ComfyUI checks with ``in``."""

    input_id = ""  # a class attribute, since ComfyUI copies lists with their items only

    @classmethod
    def of(cls, input_id: str, listed: list) -> "Values":
        """Return the values of an input."""
        values = cls(listed)
        values.input_id = input_id
        return values

    def __contains__(self, value: object) -> bool:
        return super().__contains__(current(self.input_id, value))


def current(input_id: str, value: Any) -> Any:
    """Return the value's new name if it was renamed, else the value."""
    return RENAMED.get(input_id, {}).get(value, value) if isinstance(value, str) else value
