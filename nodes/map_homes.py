"""Prompt handler that sends the home of each acceptance map of a queued prompt to the browser page.

The home of a map is the workflow and the node that the map belongs to. The page needs the homes, because the user may
open another workflow before the prompt finishes.
"""

from uuid import uuid4

from .comfy_runtime import send
from .log_errors import decorating
from .saved_map import homes

EVENT = "adt_tree.queued"


def announce(request: dict) -> dict:
    """Send the homes of a prompt's maps to the browser tab that queues the prompt.

    The message contains the prompt's id. This handler creates the id if the client did not.

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
            send(EVENT, {"prompt": request["prompt_id"], "homes": places}, tab)
    return request
