"""Data of the acceptance map in the browser: messages with new rounds during a run, and the finished map.

A round is one pass of the model, which verifies the drafts of one or several images. Messages and finished maps have
the same header. A message also has `first`, the index of its first round in the run, and `rounds`; the first message of
a run also has the values of the node's inputs. In `rounds`, a round is `[milliseconds, drafting milliseconds, record,
record, ...]`. A record is the part of one image in the round: a list of numbers in the order of `RECORD`.
js/map_model.js reads the messages. The finished map is a saved map; see `saved_map`.
"""

import base64
import io
import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from PIL import Image

from ..adt_core import Decoding, Round
from ..adt_core.run import digest
from .comfy_runtime import MAP_PICTURE, decorating, prompt_id, running_node, send, temporary_file, watched
from .saved_map import MAX_SAVED, attach, certainties, inputs_of, owners, pack, shortened, texts_of, workflow_of

EVENT = "adt_tree.map"
RECORD = ("image", "position", "depth_asked", "width_asked", "depth", "width", "drafts", "accepted", "substituted")
"""Fields of a record in live messages; see `ImageRound`. The position belongs to the token before the first generated
token, so kept tokens that the round has read are left out. A list follows with the certainty of the model at each token
(`saved_map.certainties`). Records of a saved map have a second list, the number of drafts on each tree level; only the
replay of a finished run shows it."""
_LONGEST_VALUE = 200  # maximum number of characters of a widget's value
_THUMBNAIL = 192  # maximum length in pixels of the longer side of a thumbnail in the saved map
_THUMBNAILS = 16_000  # maximum number of characters of all thumbnails of a node


class LiveMap:
    """Sender of the rounds of a run to the browser tab that queued the prompt, with at most ten messages a second.

    Args:
        decoding: Decoding of the run. Its trace grows during the run.
        hidden: Hidden inputs `unique_id`, `prompt` and `extra_pnginfo` of the node.
        known: Ids of the node's inputs. API clients can send any values for other ids, in any size.
        part: Index of this run among the runs that the node makes side by side.
    """

    _INTERVAL = 0.1

    def __init__(self, decoding: Decoding, hidden: Any, known: Collection[str], part: int = 0, parts: int = 1):
        self._decoding = decoding
        self._trace = decoding.trace
        self._prompt = prompt_id()
        self._node = running_node()  # in a loop, `unique_id` names a copy that the page lacks
        self._part = part
        self._parts = parts
        self._interval = self._INTERVAL * parts
        self._id = secrets.token_hex(8)
        workflow = (workflow_of(hidden) or {}).get("id")
        self._workflow = workflow if isinstance(workflow, str) else None
        self._hidden = hidden
        self._inputs = _values(hidden, known)
        self._sent = 0
        self._next = 0.0

    def update(self) -> None:
        """Send the rounds since the last message, if the interval has passed."""
        tab = watched()
        now = time.monotonic()
        if tab is None or now < self._next:
            return
        self._next = math.inf  # if sending fails, this value stays, so that no further message is sent
        with decorating("the live map"):
            rounds = [_pack(round) for round in self._trace.rounds[self._sent :]]
            once = {} if self._sent else {"inputs": self._inputs}
            send(EVENT, {**self._header(), **once, "first": self._sent, "rounds": rounds}, tab)
            self._sent += len(rounds)
            self._next = now + self._interval

    def whole(self, picture: Callable[[int], Image.Image], budget: float = 0.02) -> dict:
        """Return the finished map, for a node's `ui` output `adt_tree_map` and for saved images.

        If a browser tab queued the run, the map includes decoded images: the first one always, and the following ones
        until the time budget is used up.

        Args:
            picture: Function that gets the index of an image and returns the decoded image.
            budget: Time for decoding the images, as a share of the duration of the run.
        """
        pictures: list[dict] = []
        thumbnails: list[str] = []
        with decorating("a picture under the map"):
            self._take_pictures(picture, budget, pictures, thumbnails)
        while sum(map(len, thumbnails)) > _THUMBNAILS // self._parts:
            thumbnails.pop()
        data = pack(self._trace.rounds)
        own = {
            "data": data,
            "inputs": self._inputs,
            "texts": texts_of(self._hidden.prompt, self._hidden.unique_id),
            "pictures": pictures,
            "thumbnails": thumbnails,
        }
        speedup = self._trace.speedup and round(self._trace.speedup, 2)
        tokens = digest(self._decoding.grid_codes().tolist())  # two runs with the same digest have the same images
        return {**self._header(), **own, "speedup": speedup, "tokens": tokens}

    def small(self, whole: dict) -> dict:
        """Return a copy of a finished map of limited size, for image files."""
        most = MAX_SAVED // self._parts
        return whole if len(whole["data"]) <= most else {**whole, "data": shortened(self._trace.rounds, most)}

    def _take_pictures(self, picture: Callable, budget: float, pictures: list[dict], thumbnails: list[str]) -> None:
        started = time.monotonic()
        seconds = self._trace.report()["seconds"]
        for image in range(self._trace.images if watched() is not None else 0):
            made = picture(image)
            pictures.append(_keep(made))
            thumbnails.append(_thumbnail(made))
            if time.monotonic() - started > budget * seconds:
                break

    def _header(self) -> dict:
        """Return the fields that messages and finished maps have in common. `Run` in js/map_model.js describes them."""
        trace = self._trace
        settings = self._trace.settings
        precision = settings["weights"] or settings["dtype"]
        guided = settings["sampling"]["guidance_scale"] != 1
        return {
            "id": self._id,
            "prompt": self._prompt,
            "node": self._node,
            "part": self._part,
            "parts": self._parts,
            "workflow": self._workflow,
            "method": settings["method"],
            "relaxed": settings["lantern"] is not None,
            "seed": str(settings["seed"]),  # a JavaScript number cannot hold 64 bits
            "comparable": f"{self._decoding.target.name}, {settings['device']}, {precision}, guidance {guided}",
            "images": trace.images,
            "grid": list(trace.grid),
            "ends": int(trace.row_end),
            "small": list(trace.lead) if trace.lead_length else None,
            "start": trace.start,
            "given": trace.stretches() if any(True in given[trace.start :] for given in trace.given) else None,
            "prefill": _milliseconds(trace.prefill_seconds),
        }


def finished(maps: Sequence[LiveMap], hidden: Any, *pictures: Callable[[int], Image.Image]) -> dict | None:
    """Return the `ui` output of a node whose runs have finished, and attach the maps to the workflow.

    Args:
        maps: Live maps, one per run.
        *pictures: One function per run. It gets the index of an image and returns the decoded image.
    """
    with decorating("the map"):
        wholes = [live_map.whole(picture) for live_map, picture in zip(maps, pictures)]
        attach(hidden, [live_map.small(whole) for live_map, whole in zip(maps, wholes)])
        return {"adt_tree_map": wholes}
    return None


def announce_homes(request: dict) -> dict:
    """Send the homes of a queued prompt's maps to the browser tab that queues the prompt.

    The home of a map is the workflow and the node that the map belongs to. The page needs the homes, because the user
    may open another workflow before the prompt finishes. The message contains the prompt's id, which this handler
    creates if the client did not.

    Args:
        request: Body of `POST /prompt`.

    Returns:
        The request, with a `prompt_id`.
    """
    with decorating("where maps belong"):
        tab = request.get("client_id")
        places = owners(request)
        if isinstance(tab, str) and places is not None:
            if request.get("prompt_id") is None:
                request["prompt_id"] = str(uuid4())
            send("adt_tree.queued", {"prompt": request["prompt_id"], **places}, tab)
    return request


def _values(hidden: Any, known: Collection[str]) -> dict[str, str]:
    """Return input id -> value of the node's widgets in the queued prompt, cut. Linked inputs are left out."""
    inputs = inputs_of(hidden.prompt, hidden.unique_id)
    plain = {name: inputs[name] for name in known if isinstance(inputs.get(name), str | int | float)}
    return {name: (v if isinstance(v, str) else json.dumps(v))[:_LONGEST_VALUE] for name, v in plain.items()}


def _pack(round: Round) -> list:
    records = (
        [record.image, record.first - 1, *(getattr(record, name) for name in RECORD[2:]), certainties(record)]
        for record in round.images
    )
    return [_milliseconds(round.seconds), _milliseconds(round.drafting), *records]


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _keep(picture: Image.Image) -> dict:
    """Write an image into ComfyUI's temporary folder, and return the parameters of its `/view` address."""
    picture = picture.copy()  # `thumbnail` changes the image, which may be a preview that the server has yet to send
    picture.thumbnail((MAP_PICTURE, MAP_PICTURE))
    return temporary_file("adt_tree_map", ".png", partial(picture.save, compress_level=1))


def _thumbnail(picture: Image.Image) -> str:
    """Return a small JPEG as a data URL."""
    picture = picture.convert("RGB")
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    picture.save(file := io.BytesIO(), "JPEG", quality=60)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
