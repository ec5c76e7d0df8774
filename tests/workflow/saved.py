"""Reader for saved acceptance maps. It doesn't use the pack's code."""

import base64
import io
import json
import zlib
from itertools import islice

from PIL import Image

EVENT = "adt_tree.map"  # name of the messages that update a map while its image is generated


def unpack(saved: dict) -> list:
    """Unpack a saved map. Return its rounds in the format of the update messages."""
    times, drafting, sizes, images, jumps, *others, levels, certainties = json.loads(
        zlib.decompress(base64.b64decode(saved["data"]))
    )
    assert len(others) == 7
    expected: dict[int, int] = {}
    records = []
    for i, (image, jump) in enumerate(zip(images, jumps)):
        position = expected.get(image, 0) + jump
        own = [values[i] for values in others]
        expected[image] = position + own[5] + 1
        records.append([image, position, *own])
    left_levels, left_certainties = iter(levels), iter(certainties)
    for record in records:
        record += list(islice(left_certainties, record[7] + 1)), list(islice(left_levels, record[4]))
    assert not [*left_levels, *left_certainties]
    left = iter(records)
    return [
        [ms / 100, draft / 100, *(next(left) for _ in range(size))] for ms, draft, size in zip(times, drafting, sizes)
    ]


def maps_in_png(png: bytes) -> dict:
    """Return the maps in the workflow of a PNG file. Keys are node ids."""
    return json.loads(Image.open(io.BytesIO(png)).text["workflow"])["extra"]["adt_tree_maps"]
