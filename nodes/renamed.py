"""Renamed values of combo inputs. Saved workflows and API prompts may still use the old names.

A combo accepts the old and the new name of a value, but lists only the new one. The page replaces old names in
workflows; it gets the table as `renamed` in /object_info. In API prompts, `sockets.checked` replaces old names.
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
    """List of a combo's values. ComfyUI validates a value with `in`. For this list, `in` also accepts old names."""

    input_id = ""  # default for copies, because ComfyUI copies only the items of a list

    @classmethod
    def of(cls, input_id: str, listed: list) -> "Values":
        """Return the values of an input.

        Args:
            input_id: Id of the input, a key of `RENAMED`.
            listed: Values that the combo lists.
        """
        values = cls(listed)
        values.input_id = input_id
        return values

    def __contains__(self, value: object) -> bool:
        return super().__contains__(current(self.input_id, value))


def current(input_id: str, value: Any) -> Any:
    """Return the current name of a value.

    Args:
        input_id: Id of the input.
        value: Value from a workflow or a prompt, by its old or new name.
    """
    return RENAMED.get(input_id, {}).get(value, value) if isinstance(value, str) else value
