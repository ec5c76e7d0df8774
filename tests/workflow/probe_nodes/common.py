"""Base class of the probe nodes, and routes that report on the server or change its behaviour."""

from collections.abc import Callable

from aiohttp import web
from server import PromptServer

import nodes


def pack() -> str:
    """Return the name of the pack's root package.

    ComfyUI names the package after the path of its folder. Names of other modules can also contain this path, for
    example if ComfyUI is installed inside the pack's folder.
    """
    return nodes.NODE_CLASS_MAPPINGS["ADTTreeSampler"].__module__.rsplit(".nodes.", 1)[0]


def answer(path: str) -> Callable:
    """Decorate a function that answers requests: it gets the values of the query, and returns a dict or None."""

    def register(function: Callable) -> Callable:
        @PromptServer.instance.routes.get(f"/probe/{path}")
        async def handle(request):
            return web.json_response(function(**request.query) or {})

        return function

    return register


class Probe:
    """Base class of nodes, with the types of their inputs by name."""

    CATEGORY = "probe"
    FUNCTION = "run"
    RETURN_TYPES: tuple[str, ...] = ()
    INPUTS: dict[str, str] = {}
    OPTIONAL: dict[str, str] = {}

    @classmethod
    def INPUT_TYPES(cls):
        sections = {"required": cls.INPUTS, "optional": cls.OPTIONAL}
        return {section: {name: (kind,) for name, kind in inputs.items()} for section, inputs in sections.items()}
