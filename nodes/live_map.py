"""What the acceptance map in the browser is told: increments while a run goes on, and the whole map at its end.

Both have one form, a dictionary with ``first`` (number of the first round in it) and ``rounds``; a round is
``[milliseconds, of them drafting, share, share, ...]`` and a share, one image's part of it, a list in the order of
``SHARE``. js/map_model.js reads it.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folder_paths
from PIL import Image
from server import PromptServer

from ..adt_core.rules.trace import ImageRound, Round, Trace

EVENT = "adt_tree.map"
SHARE = ("image", "position", "depth_asked", "width_asked", "depth", "width", "nodes", "accepted", "substituted")
_PICTURE = 512  # pixels of a kept picture's longer side, at most


class LiveMap:
    """Tells the tab that queued a prompt what each round did, at most ten times a second, and keeps the whole for the history.

    trace: of the run, as it grows. model: its name; plain decoding's time is compared within one model. hidden: the
    node's hidden inputs ``unique_id`` and ``extra_pnginfo``: a node number means something in one workflow only.
    part: which one this is, of ``parts`` runs that go on side by side on the node.
    """

    _INTERVAL = 0.1

    def __init__(self, trace: Trace, model: str, hidden: Any, part: int = 0, parts: int = 1):
        self._trace, self._model, self._node = trace, model, hidden.unique_id
        self._part, self._parts, self._interval = part, parts, self._INTERVAL * parts
        self._id = secrets.token_hex(8)
        workflow = (hidden.extra_pnginfo or {}).get("workflow") or {}
        self._workflow = workflow.get("id")
        self._sent, self._next = 0, 0.0

    def update(self) -> None:
        """Send the rounds since the last message, unless that was just now."""
        tab, now = _tab(), time.monotonic()
        if tab is None or now < self._next:
            return
        self._next = now + self._interval
        PromptServer.instance.send_sync(EVENT, self._since(self._sent), tab)
        self._sent = len(self._trace.rounds)

    def whole(self, picture: Callable[[int], Image.Image], budget: float = 0.02) -> dict:
        """The finished map, which ComfyUI keeps in its history when it is in the list ``adt_tree_map`` of a node's ``ui`` output.

        picture: decodes an image of the batch. The first is always kept; further ones until they have taken ``budget``, a
        share of the run's time. None is, if no tab asked for the run.
        """
        started, pictures = time.monotonic(), []
        for image in range(self._trace.images if _tab() is not None else 0):
            pictures.append(_keep(picture(image)))
            if time.monotonic() - started > budget * self._trace.report()["seconds"]:
                break
        return {**self._since(0), "pictures": pictures}

    def _since(self, first: int) -> dict:
        trace, settings = self._trace, self._trace.settings
        return {
            "id": self._id,
            "node": self._node,
            "part": self._part,
            "parts": self._parts,
            "workflow": self._workflow,
            "method": settings["method"],
            "seed": str(settings["seed"]),  # 64 bits are more than a number holds in the browser
            "comparable": f"{self._model}, {settings['device']}, {settings['weights'] or settings['dtype']}, guidance {settings['sampling']['guidance'] != 1}",
            "images": trace.images,
            "grid": list(trace.grid),
            "ends": int(trace.row_end),
            "start": trace.start,
            "prefill": round(1000 * trace.prefill_seconds, 2),
            "first": first,
            "rounds": [_pack(one) for one in trace.rounds[first:]],
        }


def _tab() -> str | None:
    """The browser tab that queued the prompt, if it was one."""
    return getattr(getattr(PromptServer, "instance", None), "client_id", None)


def _pack(one: Round) -> list:
    return [round(1000 * one.seconds, 2), round(1000 * one.drafting, 2), *(_pack_share(share) for share in one.images)]


def _pack_share(share: ImageRound) -> list[int]:
    return [getattr(share, name) for name in SHARE]


def _keep(picture: Image.Image) -> dict:
    """Write a picture into ComfyUI's temporary folder; what ``/view`` needs to find it."""
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    picture = picture.copy()  # a preview may still be on its way to the browser
    picture.thumbnail((_PICTURE, _PICTURE))
    name = f"adt_tree_map_{secrets.token_hex(8)}.png"
    picture.save(folder / name, compress_level=1)
    return {"filename": name, "subfolder": "", "type": "temp"}
