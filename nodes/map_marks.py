"""Marks of images. With them, the browser page finds out which image of a batch an image file shows.

The node Save Image writes the same workflow, and thus the same acceptance map, into all files of a batch. Only the
pixels of the files differ. A map of several images therefore has one mark per image: the mean colours of 8 by 8 regions
of the image. js/batch_image.js compares these colours with the pixels of a file. The marks are added to the map when
VAE Decode decodes the images, so the map has them before any node saves the images.
"""

import base64
import hashlib
from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor

SIDE = 8
"""Regions along each side of an image."""
_KEPT = 256  # maximum number of images in `_awaited`; an image remains after decoding, for another VAE Decode node
_MAPS = 4  # maximum number of maps per image; two samplers that generate the same image have one map each

_awaited: OrderedDict[bytes, list[tuple[dict, int]]] = OrderedDict()
"""Digest of an image's codebook vectors -> [(saved map that needs the image's mark, index of the image in the map)]."""


def expect(vectors: Tensor, saved: dict) -> None:
    """Register a saved map, so that `note` adds the marks of its images when they are decoded.

    A single image needs no mark.

    Args:
        vectors: Codebook vectors [B, C, h, w] of the B images of the map: C channels, h rows and w columns of tokens.
        saved: Saved map, to which `note` adds the key `marks`.
    """
    if len(vectors) < 2:
        return
    for image in range(len(vectors)):
        key = _digest(vectors[image])
        _awaited[key] = [*_awaited.pop(key, ()), (saved, image)][-_MAPS:]
        if len(_awaited) > _KEPT:
            _awaited.popitem(last=False)


def note(vectors: Tensor, picture: Tensor) -> None:
    """Add the mark of a decoded image to the saved maps that `expect` registered for the image.

    Args:
        vectors: Codebook vectors of the image, [1, C, h, w].
        picture: IMAGE [1, H, W, 3].
    """
    if not _awaited:
        return
    for saved, image in _awaited.get(_digest(vectors[0]), ()):
        saved.setdefault("marks", [None] * saved["images"])[image] = mark(picture[0])


def mark(image: Tensor) -> str:
    """Return the mark of an image: base64 of the mean colours of its regions, row by row, as RGB bytes.

    Args:
        image: [H, W, 3] in 0..1.
    """
    levels = (255 * image.clamp(0, 1)).floor().movedim(-1, 0).float()  # the bytes that Save Image writes
    means = F.adaptive_avg_pool2d(levels, SIDE).round().byte().movedim(0, -1)
    return base64.b64encode(means.contiguous().cpu().numpy().tobytes()).decode()


def _digest(vectors: Tensor) -> bytes:
    return hashlib.sha256(vectors.contiguous().cpu().float().numpy().tobytes()).digest()
