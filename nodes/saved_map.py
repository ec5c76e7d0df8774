"""Maps that travel in saved images: small, and put into the workflow that ComfyUI writes into its PNGs.

A saved map is the map's header with ``data`` in place of the rounds: base64 of zlib of varints, column by column (see
:func:`pack`). js/saved_map.js reads it. In a workflow, ``extra.adt_tree_maps`` holds the maps of an image by
node: ``{"12:5": {"parts": [saved map, ...]}}``. Every workflow that is queued here and has such a node gets this entry.
An empty entry tells the page that there is no map.
"""

import base64
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from ..adt_core.rules.trace import ImageRound, Round

KEY = "adt_tree_maps"
PROPERTY = "adt_tree_map"
"""Of a node in a workflow: what the page notes of its map."""
NODES = ("ADTTreeSampler", "ADTTreeCompare")
_NUMBERS = ("depth_asked", "width_asked", "depth", "width", "nodes", "accepted", "substituted")
_KEPT = 32  # finished maps, for results that ComfyUI takes from its cache

_finished: OrderedDict[str, dict] = OrderedDict()  # digest of a node and what feeds it -> its entry


def pack(rounds: list[Round]) -> str:
    """Rounds as text.

    Columns, one after the other, as varints: the number of rounds; of each its hundredths of a millisecond, those of
    them spent on drafting, and its number of shares; then of each share the image, the position (how far it is behind
    the one expected, zigzag), and ``_NUMBERS``; then the drafts on each level of each share's tree, ``depth`` of them.
    """
    shares = [share for entry in rounds for share in entry.images]
    columns: list[Iterable[int]] = [
        [len(rounds)],
        (round(100_000 * entry.seconds) for entry in rounds),
        (round(100_000 * entry.drafting) for entry in rounds),
        (len(entry.images) for entry in rounds),
        (share.image for share in shares),
        _jumps(shares),
        *([getattr(share, name) for share in shares] for name in _NUMBERS),
        (drafts for share in shares for drafts in _levels(share)),
    ]
    numbers = b"".join(_varint(number) for column in columns for number in column)
    return base64.b64encode(zlib.compress(numbers, 9)).decode()


def _levels(share: ImageRound) -> tuple[int, ...]:
    return (*share.levels, *[0] * share.depth)[: share.depth]


def _jumps(shares: list[ImageRound]) -> Iterable[int]:
    """How far each position is from where the image's last share left it; 0 nearly always."""
    expected: dict[int, int] = {}
    for share in shares:
        jump = share.position - expected.get(share.image, 0)
        expected[share.image] = share.position + share.accepted + 1
        yield 2 * jump if jump >= 0 else -2 * jump - 1


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    varint = bytearray()
    while number > 127:
        varint.append(number & 127 | 128)
        number >>= 7
    return bytes([*varint, number])


def digest(prompt: dict, node: str) -> str | None:
    """What a node is given, whatever its number and whatever else is in the prompt; None for a prompt without sense.

    prompt: in ComfyUI's API format, where an input is a value or ``[node, output]``.
    """
    digests: dict[str, str | None] = {}

    def part(number: str) -> str | None:
        if number not in digests:
            digests[number] = None  # a node that feeds itself
            inputs = prompt[number]["inputs"]
            content = [prompt[number]["class_type"], [[name, value(inputs[name])] for name in sorted(inputs)]]
            digests[number] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return digests[number]

    def value(given: Any) -> Any:
        linked = isinstance(given, list) and len(given) == 2 and given[0] in prompt
        return [part(given[0]), given[1]] if linked else given

    try:
        return part(node)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def attach(hidden: Any, parts: list[dict]) -> None:
    """Put a node's finished maps into the workflow that images made of its result are saved with.

    hidden: the node's hidden inputs ``unique_id``, ``prompt`` and ``extra_pnginfo``. A node that runs over a list has
    several maps, and no image says which is its own, so none of them travels. Nor do ``pictures``, which are files of
    this server.
    """
    key = digest(hidden.prompt or {}, hidden.unique_id)
    maps = _maps(workflow_of(hidden))
    before = maps.get(hidden.unique_id)
    again = isinstance(before, dict) and not before.get("cached")
    small = [{name: value for name, value in part.items() if name != "pictures"} for part in parts]
    entry: dict = {"parts": [] if again else small}
    maps[hidden.unique_id] = entry
    if key is not None:
        _finished[key] = entry
        _finished.move_to_end(key)
        if len(_finished) > _KEPT:
            _finished.popitem(last=False)


def parts_of(hidden: Any) -> list[dict]:
    """The maps of a node that :func:`attach` has put into its workflow; what they get is saved as well."""
    entry = _entry(_maps(workflow_of(hidden)), hidden.unique_id)
    return entry["parts"] if entry is not None else []


def without_maps(extra: dict) -> dict:
    """What images carry beside their prompt, for one that no map of its workflow shows: so none is shown with it."""
    workflow = _entry(extra, "workflow")
    more = _entry(workflow, "extra")
    if workflow is None or more is None or KEY not in more:
        return extra
    return {**extra, "workflow": {**workflow, "extra": {**more, KEY: {}}}}


def workflow_of(hidden: Any) -> dict | None:
    """The workflow that a node's prompt came with, which any client may have written; None if that is none."""
    return _entry(hidden.extra_pnginfo, "workflow")


def _entry(value: Any, name: str) -> dict | None:
    entry = value.get(name) if isinstance(value, dict) else None
    return entry if isinstance(entry, dict) else None


def _maps(workflow: dict | None) -> dict:
    """Where a workflow keeps its maps; a dictionary that nobody sees if there is no workflow."""
    return {} if workflow is None else _dictionary(_dictionary(workflow, "extra"), KEY)


def _dictionary(holder: dict, name: str) -> dict:
    """The dictionary of this name, in place of whatever else is there."""
    if not isinstance(holder.get(name), dict):
        holder[name] = {}
    return holder[name]


def remind(request: dict) -> dict:
    """Before a prompt is queued: its workflow gets the maps of nodes whose results ComfyUI may take from its cache."""
    prompt, workflow, ours = _parts(request)
    if prompt is not None and workflow is not None and ours:
        maps = _maps(workflow)
        maps.clear()
        for number in ours:
            if (entry := _finished.get(digest(prompt, number) or "")) is not None:
                maps[number] = {**entry, "cached": True}
    return request


def homes(request: dict) -> dict[str, str] | None:
    """Where the maps of a prompt's nodes belong, by execution id: "12:5" is node 5 in the subgraph of node 12.

    A home is what js/node_map.js calls so: the workflow's id and the node's tag. None for a prompt without a workflow.
    """
    _, workflow, ours = _parts(request)
    if workflow is None:
        return None
    tags = {number: _tag(workflow, number) for number in ours}
    return {number: f"{workflow.get('id')} {tag}" for number, tag in tags.items() if tag is not None}


def _parts(request: dict) -> tuple[dict | None, dict | None, list[str]]:
    """The prompt and the workflow of a request, None for what is none, and the nodes that have maps."""
    prompt, workflow = _entry(request, "prompt"), _entry(_entry(request.get("extra_data"), "extra_pnginfo"), "workflow")
    nodes = (prompt or {}).items()
    return prompt, workflow, [key for key, node in nodes if isinstance(node, dict) and node.get("class_type") in NODES]


def _tag(workflow: dict, number: str) -> str | None:
    """The tag of a node's map, where its workflow says it."""
    *path, last = number.split(":")
    graph = workflow
    try:
        for part in path:
            kind = _node(graph, part)["type"]
            graph = next(graph for graph in workflow["definitions"]["subgraphs"] if graph["id"] == kind)
        tag = _node(graph, last)["properties"][PROPERTY]["tag"]
    except (AttributeError, LookupError, StopIteration, TypeError):
        return None
    return tag if isinstance(tag, str) else None


def _node(graph: dict, number: str) -> dict:
    return next(node for node in graph["nodes"] if str(node["id"]) == number)
