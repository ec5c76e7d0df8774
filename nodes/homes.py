"""Tells the page that queues a prompt where the maps of its nodes belong: another workflow may be open at its end."""

from uuid import uuid4

from server import PromptServer

from .decoration import decorating
from .saved_map import homes

EVENT = "adt_tree.queued"


def announce(request: dict) -> dict:
    """Before a prompt is queued. Its id is made here, as any client may do, so that the page can be told of it."""
    with decorating("where maps belong"):
        tab, places = request.get("client_id"), homes(request)
        if isinstance(tab, str) and places is not None:
            if request.get("prompt_id") is None:
                request["prompt_id"] = str(uuid4())
            PromptServer.instance.send_sync(EVENT, {"prompt": request["prompt_id"], "homes": places}, tab)
    return request
