"""Warnings about inputs in an API prompt that a node does not have. ComfyUI ignores such inputs silently."""

from comfy_api.v0_0_2 import io
from comfy_execution.utils import get_executing_context
from server import PromptServer

from ..adt_core.messages import message
from .comfy_runtime import tell
from .log_errors import decorating


def warn(node: type[io.ComfyNode], output: io.NodeOutput) -> io.NodeOutput:
    """Warn about unknown inputs of the running node: under it, in the log and in the entry `warnings` of its `ui`.

    Args:
        node: Class of the running node.
        output: Result of the node, which gets the warning.
    """
    with decorating("the check of the names of inputs"):
        context = get_executing_context()
        if context is None:
            return output
        (_, _, prompt, *_), *_ = PromptServer.instance.prompt_queue.currently_running.values()
        schema = node.define_schema()
        known = {plug.id for plug in schema.inputs}
        unknown = [name for name in prompt.get(context.node_id, {}).get("inputs", {}) if not _is_known(name, known)]
        if unknown:
            text = message("api.unknown_inputs", names=", ".join(unknown), inputs=", ".join(sorted(known)))
            tell(text)
            shown = output.ui if isinstance(output.ui, dict) else output.ui.as_dict() if output.ui else {}
            output.ui = {**shown, "warnings": [str(text)]}
    return output


def _is_known(name: str, known: set[str]) -> bool:
    """Return whether a node has an input, or the page adds it, as "control_after_generate" to a seed."""
    return name in known or name == "control_after_generate"
