"""Constant draft costs for a test server. With these costs, ``auto`` also drafts on a busy machine."""

from importlib import import_module

from aiohttp import web
from server import PromptServer

import nodes


def pack() -> str:
    """Return the name of the pack's root package.

    ComfyUI names the package after the path of its folder. Names of other modules can also contain this path, for
    example if ComfyUI is installed inside the pack's folder.
    """
    return nodes.NODE_CLASS_MAPPINGS["ADTTreeSampler"].__module__.rsplit(".nodes.", 1)[0]


@PromptServer.instance.routes.get("/probe/costs")
async def costs(request):
    """Make the pack use its estimated costs from now on, instead of measured costs."""
    profiles = import_module(f"{pack()}.adt_core.engine.device.profiles")
    profiles.find_costs = lambda name, images: None
    return web.json_response({})
