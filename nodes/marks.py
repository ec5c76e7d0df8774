"""Marks by which the page finds the image of a batch that a file holds.

Save Image writes one workflow, and with it one map, into all files of a batch, so only the pixels differ. A map of
several images therefore has one mark per image, the mean colours of its regions, and js/batch_image.js compares them
with the file. The marks are set when VAE Decode makes the image, which is before any node can save it.
"""

import base64
import hashlib
from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor

SIDE = 8
"""Regions along each side of an image."""
_KEPT = 256  # images that are not decoded yet, or may be decoded again
_MAPS = 4  # maps per image; two samplers that draw the same image have one map each

_awaited: OrderedDict[bytes, list[tuple[dict, int]]] = OrderedDict()
"""Digest of the vectors of an image -> the maps that wait for its mark, and its index in each."""


def expect(vectors: Tensor, saved: dict) -> None:
    """Register a saved map to receive the marks of its images as soon as they are decoded.

    Args:
        vectors: Codebook vectors of all images of the map, [B, C, h, w].
        saved: Saved map that gets the key `marks`.
    """
    if len(vectors) < 2:
        return
    for image in range(len(vectors)):
        key = _digest(vectors[image])
        _awaited[key] = [*_awaited.pop(key, ()), (saved, image)][-_MAPS:]
        if len(_awaited) > _KEPT:
            _awaited.popitem(last=False)


def note(vectors: Tensor, picture: Tensor) -> None:
    """Add the mark of a decoded image to the maps that wait for it.

    Args:
        vectors: Codebook vectors of the image, [1, C, h, w].
        picture: IMAGE [1, H, W, 3].
    """
    if not _awaited:
        return
    for saved, image in _awaited.get(_digest(vectors[0]), ()):
        saved.setdefault("marks", [None] * saved["images"])[image] = mark(picture[0])


def mark(image: Tensor) -> str:
    """Return the mark of an image: base64 of the mean RGB bytes of its regions, row by row.

    Args:
        image: [H, W, 3] in 0..1.
    """
    levels = (255 * image.clamp(0, 1)).floor().movedim(-1, 0).float()  # the bytes that Save Image writes
    means = F.adaptive_avg_pool2d(levels, SIDE).round().byte().movedim(0, -1)
    return base64.b64encode(means.contiguous().cpu().numpy().tobytes()).decode()


def _digest(vectors: Tensor) -> bytes:
    return hashlib.sha256(vectors.contiguous().cpu().float().numpy().tobytes()).digest()
