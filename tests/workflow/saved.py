"""Reader for saved acceptance maps. It doesn't use the pack's code."""

import base64
import io
import json
import zlib

from PIL import Image

EVENT = "adt_tree.map"
"""Name of the messages that update a map while its image is generated."""


def unpack(saved: dict) -> list:
    """Unpack a saved map. Return its rounds in the format of the update messages."""
    numbers = _varints(zlib.decompress(base64.b64decode(saved["data"])))

    def column(length: int) -> list[int]:
        return [next(numbers) for _ in range(length)]

    (count,) = column(1)
    times, drafting, sizes = (column(count) for _ in range(3))
    total = sum(sizes)
    images, jumps, *others = (column(total) for _ in range(9))
    expected: dict[int, int] = {}
    records = []
    for i, (image, jump) in enumerate(zip(images, jumps)):
        position = expected.get(image, 0) + (-(jump + 1) // 2 if jump % 2 else jump // 2)
        own = [values[i] for values in others]
        expected[image] = position + own[5] + 1
        records.append([image, position, *own])
    levels = [column(record[4]) for record in records]
    for record, own in zip(records, levels):
        record += column(record[7] + 1), own
    assert next(numbers, None) is None
    left = iter(records)
    return [
        [ms / 100, draft / 100, *(next(left) for _ in range(size))] for ms, draft, size in zip(times, drafting, sizes)
    ]


def _varints(data: bytes):
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def maps_in_png(png: bytes) -> dict:
    """Return the maps in the workflow of a PNG file. Keys are node ids."""
    return json.loads(Image.open(io.BytesIO(png)).text["workflow"])["extra"]["adt_tree_maps"]
