"""What drafts cost in a server of the tests: always the same, so that ``auto`` drafts however busy the machine is."""

import sys
from importlib import import_module

from aiohttp import web
from server import PromptServer


@PromptServer.instance.routes.get("/probe/costs")
async def costs(request):
    """From now on the pack finds the built-in costs of one image wherever it looks for measured ones."""
    pack = next(name for name in sys.modules if name.endswith("ADT-Tree"))
    profiles, policies = (import_module(f"{pack}.adt_core.{name}") for name in ("engine.profiles", "policies.costs"))
    measured = policies.built_in("cpu", 1).costs
    profiles.find = lambda name, images: policies.CostProfile(name, images, measured)
    profiles.doubted = lambda *_: False
    return web.json_response({})
