"""Compact maps, stored in the workflow that ComfyUI writes into saved images.

A saved map is a dictionary with the header of the map (see `live_map`) and the key `data`, which encodes all rounds of
the run as text (see `pack`). js/saved_map.js reads saved maps.

A workflow stores maps in its entry `extra.adt_tree_maps`, by the execution id of their node. Example:
`{"12:5": {"parts": [saved map, ...]}}` has the maps of node 5 in the subgraph of node 12. A node that makes two runs
side by side has two parts. Every queued workflow with a node of `NODES` gets the entry. It is empty if there is no map.
"""

import base64
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

from ..adt_core import Round
from ..adt_core.trace import ImageRound

KEY = "adt_tree_maps"
PROPERTY = "adt_tree_map"
"""Property of a workflow node, in which the page stores the tag (a random text) that identifies the node."""
NODES = ("ADTTreeSampler", "ADTTreeCompare")
MAX_SAVED = 28_000  # maximum number of characters of the data of all maps of a node in image files
# Fields of a record (the part of one image in a round), in the order of their columns in the data; see `pack`.
_NUMBERS = ("depth_asked", "width_asked", "depth", "width", "drafts", "accepted", "substituted")
_LONGEST_TEXT = 100_000  # maximum number of characters of all typed texts; longer texts are left out
_MOST_NODES, _MOST_TEXTS = 100, 20  # maximum number of nodes with typed texts, and of texts of a node
_KEPT = 32  # maximum number of entries in `_finished`

# Digest of a node and its upstream nodes -> entry with the node's maps, for results from ComfyUI's cache.
_finished: OrderedDict[str, dict] = OrderedDict()


def pack(rounds: list[Round]) -> str:
    """Encode rounds as text: base64 of a zlib-compressed JSON list of columns, which are lists of integers.

    A record is the part of one image in a round. The columns are in this order:

    - three columns with a value per round: its time and its drafting time in units of 0.01 ms, its number of records
    - two columns with a value per record: the index of the image, and the distance of its position (see `_jumps`)
    - a column for each of `_NUMBERS`, with a value per record
    - a column with `depth` values per record: the number of drafts on each level of its tree
    - a column with `accepted` + 1 values per record: `certainties`

    Flat columns compress better than a list per record.
    """
    records = [record for entry in rounds for record in entry.images]
    columns: list[Iterable[int]] = [
        (round(100_000 * entry.seconds) for entry in rounds),
        (round(100_000 * entry.drafting) for entry in rounds),
        (len(entry.images) for entry in rounds),
        (record.image for record in records),
        _jumps(records),
        *([getattr(record, name) for record in records] for name in _NUMBERS),
        # 0 for levels that are unknown
        (drafts for record in records for drafts in (*record.levels, *[0] * record.depth)[: record.depth]),
        (percent for record in records for percent in certainties(record)),
    ]
    content = json.dumps([list(column) for column in columns], separators=(",", ":"))
    return base64.b64encode(zlib.compress(content.encode(), 9)).decode()


def shortened(rounds: list[Round], most: int = MAX_SAVED) -> str:
    """Encode rounds as text of limited length, for maps in image files. JPEG files can store only 64 KB of metadata.

    Details are left out until the text is short enough: first the number of drafts on each tree level, then how certain
    the model was, then the times of single rounds (each round gets the average time), then the last images.

    Args:
        most: Maximum number of characters.
    """
    images = 1 + max((record.image for entry in rounds for record in entry.images), default=-1)
    data = ""
    for simplify in (partial(_with, levels=()), partial(_with, probabilities=()), _with_average_times):
        rounds = simplify(rounds)
        data = pack(rounds)
        if len(data) <= most:
            return data
    while len(data) > most and images:
        images = min(images - 1, images * most // len(data))  # each image needs about the same number of characters
        rounds = [replace(entry, images=tuple(one for one in entry.images if one.image < images)) for entry in rounds]
        data = pack(rounds)
    return data


def _with(rounds: list[Round], **changes: Any) -> list[Round]:
    return [replace(entry, images=tuple(replace(record, **changes) for record in entry.images)) for entry in rounds]


def _with_average_times(rounds: list[Round]) -> list[Round]:
    seconds = mean(entry.seconds for entry in rounds)
    drafting = mean(entry.drafting for entry in rounds)
    return [replace(entry, seconds=seconds, drafting=drafting) for entry in rounds]


def certainties(record: ImageRound) -> list[int]:
    """Return for each token that a record generated the probability of the most probable token in percent, at least 1.

    0 stands for a probability that is not known.
    """
    return [max(1, round(100 * p)) for p in record.probabilities] or [0] * (record.accepted + 1)


def _jumps(records: list[ImageRound]) -> Iterable[int]:
    """Yield the position of each record minus the end of the previous record of the same image, which is usually 0."""
    expected: dict[int, int] = {}
    for record in records:
        position = record.first - 1  # kept tokens that the round has read are left out
        yield position - expected.get(record.image, 0)
        expected[record.image] = position + record.accepted + 1


def digest(prompt: dict, node: str, known: dict[str, str | None] | None = None) -> str | None:
    """Hash the types and inputs of a node and of its upstream nodes.

    The digest depends neither on the ids of these nodes nor on other nodes of the prompt.

    Args:
        prompt: Prompt in ComfyUI's API format, where an input is a value or `[node, output]`.
        known: Digests of nodes of this prompt, for several calls. This function adds further digests.

    Returns:
        Hex digest, or None if the prompt is malformed.
    """
    digests = {} if known is None else known

    def part(number: str) -> str:
        if number not in digests:
            digests[number] = None  # stays there if the node is malformed or feeds itself
            inputs = prompt[number]["inputs"]
            content = [prompt[number]["class_type"], [[name, value(inputs[name])] for name in sorted(inputs)]]
            digests[number] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        if (own := digests[number]) is None:
            raise ValueError
        return own

    def value(given: Any) -> Any:
        linked = isinstance(given, list) and len(given) == 2 and given[0] in prompt
        return [part(given[0]), given[1]] if linked else given

    try:
        return part(node)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def attach(hidden: Any, parts: list[dict]) -> None:
    """Store a node's finished maps in the workflow that ComfyUI writes into saved images.

    If ComfyUI runs the node several times for a list, no map is stored, because a saved image does not identify the run
    that made it. The key `pictures` is not stored either, because it refers to temporary files of this server.

    Args:
        hidden: Hidden inputs `unique_id`, `prompt` and `extra_pnginfo` of the node.
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


def without_maps(extra: dict) -> dict:
    """Return a copy of `extra_pnginfo` without maps, for images to which no map of the workflow belongs."""
    workflow = _entry(extra, "workflow")
    more = _entry(workflow, "extra")
    if workflow is None or more is None or KEY not in more:
        return extra
    return {**extra, "workflow": {**workflow, "extra": {**more, KEY: {}}}}


def workflow_of(hidden: Any) -> dict | None:
    """Return the workflow in a node's `extra_pnginfo`, or None if the client sent no valid workflow."""
    return _entry(hidden.extra_pnginfo, "workflow")


def _entry(value: Any, name: str) -> dict | None:
    entry = value.get(name) if isinstance(value, dict) else None
    return entry if isinstance(entry, dict) else None


def _maps(workflow: dict | None) -> dict:
    """Return the map entry of a workflow, and create it if it is missing.

    Without a workflow, the result is a new dictionary that is not stored anywhere.
    """
    return {} if workflow is None else _dictionary(_dictionary(workflow, "extra"), KEY)


def _dictionary(holder: dict, name: str) -> dict:
    """Return the dictionary at `name`. If there is none, store an empty one first."""
    if not isinstance(holder.get(name), dict):
        holder[name] = {}
    return holder[name]


def remind(request: dict) -> dict:
    """Add maps to a queued workflow, for nodes whose results ComfyUI may return from its cache.

    A node does not run if its result is in the cache, so it cannot call `attach`.

    Args:
        request: Body of `POST /prompt`, changed in place.

    Returns:
        The request.
    """
    prompt, workflow, ours = _parts(request)
    if prompt is not None and workflow is not None and ours:
        maps = _maps(workflow)
        maps.clear()
        known: dict[str, str | None] = {}  # the server waits for this function, so each node is hashed once
        for number in ours if _finished else ():
            if (entry := _finished.get(digest(prompt, number, known) or "")) is not None:
                # The run may be from another workflow, where the nodes of its texts had other ids.
                texts = texts_of(prompt, number)
                maps[number] = {"parts": [{**part, "texts": texts} for part in entry["parts"]], "cached": True}
    return request


def texts_of(prompt: dict | None, node: Any) -> dict[str, dict[str, str]]:
    """Return the texts that the user has typed for the prompts of a sampler: node id -> input id -> text.

    The search starts at the inputs `positive` and `negative` and follows all links upstream, except links to `clip`.
    It ends after `_MOST_NODES` nodes and `_LONGEST_TEXT` characters, because a prompt can have any size.

    Args:
        prompt: Prompt in ComfyUI's API format.
        node: Execution id of the sampler.
    """
    left = _LONGEST_TEXT
    texts: dict[str, dict[str, str]] = {}
    pending = [inputs_of(prompt, node).get(name) for name in ("positive", "negative")]
    while pending:
        given = pending.pop()
        number = given[0] if isinstance(given, list) and given and isinstance(given[0], str) else None
        if number is not None and number not in texts and len(texts) < _MOST_NODES:
            inputs = inputs_of(prompt, number)
            typed = {name: value for name, value in inputs.items() if isinstance(value, str) and len(value) <= left}
            texts[number] = dict(list(typed.items())[:_MOST_TEXTS])
            left -= sum(map(len, texts[number].values()))
            pending += [value for name, value in inputs.items() if name != "clip"]
    return {number: typed for number, typed in texts.items() if typed}


def inputs_of(prompt: dict | None, node: Any) -> dict:
    """Return the inputs of a node in a prompt in ComfyUI's API format."""
    inputs = _entry(_entry(prompt, node), "inputs")
    return inputs if inputs is not None else {}


def owners(request: dict) -> dict | None:
    """Return the workflow of a prompt, and what belongs to each of its maps.

    Args:
        request: Body of `POST /prompt`.

    Returns:
        None if there is no workflow, otherwise a dictionary. `workflow` is the id of the workflow. `homes` has the home
        of each map: the id of the workflow, a space, and the tag of the node, which the page creates (js/node_map.js).
        `texts` has the result of `texts_of` for each map. The keys of both are execution ids: "12:5" is node 5 in the
        subgraph of node 12.
    """
    prompt, workflow, ours = _parts(request)
    if workflow is None:
        return None
    tags = _tags(workflow, ours)
    return {
        "workflow": workflow.get("id"),
        "homes": {number: f"{workflow.get('id')} {tag}" for number, tag in tags.items() if tag is not None},
        "texts": {number: texts_of(prompt, number) for number in ours},
    }


def _parts(request: dict) -> tuple[dict | None, dict | None, list[str]]:
    """Return the prompt of a request, its workflow, and the ids of the nodes that can have a map.

    The prompt or the workflow is None if the request does not contain it.
    """
    prompt = _entry(request, "prompt")
    workflow = _entry(_entry(request.get("extra_data"), "extra_pnginfo"), "workflow")
    nodes = (prompt or {}).items()
    return prompt, workflow, [key for key, node in nodes if isinstance(node, dict) and node.get("class_type") in NODES]


def _tags(workflow: dict, numbers: list[str]) -> dict[str, str | None]:
    """Return the tag that the page has stored in each node, or None."""
    tables: dict[int, dict[str, dict]] = {}  # id of a list -> its dictionaries by their ids

    def find(listed: list[dict], key: str) -> dict:
        if id(listed) not in tables:
            tables[id(listed)] = {str(entry["id"]): entry for entry in reversed(listed)}  # the first one counts
        return tables[id(listed)][key]

    def tag(number: str) -> str | None:
        *path, last = number.split(":")
        graph = workflow
        try:
            for part in path:
                graph = find(workflow["definitions"]["subgraphs"], find(graph["nodes"], part)["type"])
            found = find(graph["nodes"], last)["properties"][PROPERTY]["tag"]
        except (AttributeError, LookupError, TypeError):
            return None
        return found if isinstance(found, str) else None

    return {number: tag(number) for number in numbers}
