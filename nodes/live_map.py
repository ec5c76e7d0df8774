"""What the acceptance map in the browser is told: new rounds while a run goes on, and the whole map at its end.

Both messages have the same form: a dictionary with ``first``, the number of its first round, and ``rounds``. A round is
``[milliseconds, of them drafting, share, share, ...]``. A share is one image's part of the round: a list in the order
of ``SHARE``. js/map_model.js reads all this.
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
from .runtime import watched

EVENT = "adt_tree.map"
SHARE = ("image", "position", "depth_asked", "width_asked", "depth", "width", "nodes", "accepted", "substituted")
_PICTURE = 512  # most pixels of a kept picture's longer side


class LiveMap:
    """Tells the browser tab that queued a prompt what each round did, at most ten times a second.

    trace: of the run, as it grows. model: its name; the browser compares with plain decoding of the same model only.
    hidden: the node's hidden inputs ``unique_id`` and ``extra_pnginfo``, which names the workflow that the node belongs
    to. part: number of this run among the ``parts`` runs that the node makes side by side.
    """

    _INTERVAL = 0.1

    def __init__(self, trace: Trace, model: str, hidden: Any, part: int = 0, parts: int = 1):
        self._trace, self._model, self._node = trace, model, hidden.unique_id
        self._part, self._parts, self._interval = part, parts, self._INTERVAL * parts
        self._id = secrets.token_hex(8)
        self._workflow = ((hidden.extra_pnginfo or {}).get("workflow") or {}).get("id")
        self._sent, self._next = 0, 0.0

    def update(self) -> None:
        """Send the rounds since the last message, unless that was less than the interval ago."""
        tab, now = watched(), time.monotonic()
        if tab is None or now < self._next:
            return
        self._next = now + self._interval
        PromptServer.instance.send_sync(EVENT, self._since(self._sent), tab)
        self._sent = len(self._trace.rounds)

    def whole(self, picture: Callable[[int], Image.Image], budget: float = 0.02) -> dict:
        """The finished map, for the list ``adt_tree_map`` of a node's ``ui`` output, which ComfyUI keeps in its
        history.

        picture: decodes the image of this number. If a browser tab queued the run, pictures are kept: the first one,
        and further ones until decoding them has taken ``budget``, a share of the run's time.
        """
        started, pictures = time.monotonic(), []
        for image in range(self._trace.images if watched() is not None else 0):
            try:
                pictures.append(_keep(picture(image)))
            except OSError:  # a full disk, say: the map does without, and the image itself is not lost
                break
            if time.monotonic() - started > budget * self._trace.report()["seconds"]:
                break
        return {**self._since(0), "pictures": pictures}

    def _since(self, first: int) -> dict:
        trace, settings = self._trace, self._trace.settings
        precision, guided = settings["weights"] or settings["dtype"], settings["sampling"]["guidance"] != 1
        return {
            "id": self._id,
            "node": self._node,
            "part": self._part,
            "parts": self._parts,
            "workflow": self._workflow,
            "method": settings["method"],
            "seed": str(settings["seed"]),  # 64 bits are more than a number holds in the browser
            "comparable": f"{self._model}, {settings['device']}, {precision}, guidance {guided}",
            "images": trace.images,
            "grid": list(trace.grid),
            "ends": int(trace.row_end),
            "start": trace.start,
            "prefill": round(1000 * trace.prefill_seconds, 2),
            "first": first,
            "rounds": [_pack(one) for one in trace.rounds[first:]],
        }


def _pack(one: Round) -> list:
    return [round(1000 * one.seconds, 2), round(1000 * one.drafting, 2), *(_pack_share(share) for share in one.images)]


def _pack_share(share: ImageRound) -> list[int]:
    return [getattr(share, name) for name in SHARE]


def _keep(picture: Image.Image) -> dict:
    """Write a picture into ComfyUI's temporary folder. Returns what ``/view`` needs to find it."""
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    picture = picture.copy()  # a preview may still be on its way to the browser
    picture.thumbnail((_PICTURE, _PICTURE))
    name = f"adt_tree_map_{secrets.token_hex(8)}.png"
    picture.save(folder / name, compress_level=1)
    return {"filename": name, "subfolder": "", "type": "temp"}
