"""By what a page knows which image of a batch a file is.

Save Image writes one workflow, and so one map, into all files of a batch. What differs is the picture. So a map of
several images has a mark of each, the mean colours of its regions, and js/own_image.js compares them with the file's.
They are known once VAE Decode has made the picture, which is before anything can save it.
"""

import base64
import hashlib
from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor

SIDE = 8
"""Regions along each side of a picture."""
_KEPT = 256  # images that have not been decoded, or may be again
_MAPS = 4  # maps with the same image, as where two nodes draw it

_awaited: OrderedDict[bytes, list[tuple[dict, int]]] = OrderedDict()
"""Digest of vectors -> maps, and the image's number."""


def expect(vectors: Tensor, saved: dict) -> None:
    """Let a saved map have the marks of its images once they are decoded. vectors: [B, C, h, w], of all its images."""
    if len(vectors) < 2:
        return
    for image in range(len(vectors)):
        key = _digest(vectors[image])
        _awaited[key] = [*_awaited.pop(key, ()), (saved, image)][-_MAPS:]
        if len(_awaited) > _KEPT:
            _awaited.popitem(last=False)


def note(vectors: Tensor, picture: Tensor) -> None:
    """Give the maps that wait for it the mark of an image that was decoded. vectors: [1, C, h, w]. picture: an IMAGE of
    one."""
    if not _awaited:
        return
    for saved, image in _awaited.get(_digest(vectors[0]), ()):
        saved.setdefault("marks", [None] * saved["images"])[image] = mark(picture[0])


def mark(image: Tensor) -> str:
    """Of an image [H, W, 3] in 0..1: base64 of the mean bytes of its regions, row by row, three to each."""
    levels = (255 * image.clamp(0, 1)).floor().movedim(-1, 0).float()  # the bytes that Save Image writes
    means = F.adaptive_avg_pool2d(levels, SIDE).round().byte().movedim(0, -1)
    return base64.b64encode(means.contiguous().cpu().numpy().tobytes()).decode()


def _digest(vectors: Tensor) -> bytes:
    return hashlib.sha256(vectors.contiguous().cpu().float().numpy().tobytes()).digest()
