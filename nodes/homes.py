"""Prompt handler that tells the page to which workflow each map of a queued prompt belongs.

The page needs this because another workflow may be open when the prompt finishes.
"""

from uuid import uuid4

from server import PromptServer

from .decoration import decorating
from .saved_map import homes

EVENT = "adt_tree.queued"


def announce(request: dict) -> dict:
    """Send the homes of a prompt's maps to the browser tab that queues it.

    The message needs the prompt's id, so this handler creates one if the client did not.

    Args:
        request: Body of `POST /prompt`.

    Returns:
        The request, with a `prompt_id`.
    """
    with decorating("where maps belong"):
        tab = request.get("client_id")
        places = homes(request)
        if isinstance(tab, str) and places is not None:
            if request.get("prompt_id") is None:
                request["prompt_id"] = str(uuid4())
            PromptServer.instance.send_sync(EVENT, {"prompt": request["prompt_id"], "homes": places}, tab)
    return request
