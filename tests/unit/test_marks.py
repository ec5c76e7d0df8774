"""Tests of the marks of a batch's images.

A mark is the mean colours of an image in 8 x 8 cells. By its mark, the page finds the image of a batch that a file
shows. A mark must differ between images, and must not change if an image is enlarged.
"""

import base64

import numpy as np
import pytest
import torch
from adt_tree_pack.nodes import map_marks as marks

IMAGES = torch.rand(3, 40, 28, 3, generator=torch.Generator().manual_seed(1))
VECTORS = torch.rand(3, 4, 5, 5, generator=torch.Generator().manual_seed(2))


def read(mark: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(mark), np.uint8).astype(float).reshape(8, 8, 3)


def test_a_mark_is_the_mean_colours_of_the_file():
    own = read(marks.mark(IMAGES[0]))
    file = np.floor(255 * IMAGES[0].numpy())
    assert own[0, 0] == pytest.approx(file[:5, :4].mean((0, 1)), abs=0.51)
    assert own[7, 3] == pytest.approx(file[35:, 10:14].mean((0, 1)), abs=0.51), "cells are in row-major order"
    large = IMAGES[0].repeat_interleave(3, 0).repeat_interleave(3, 1)
    assert np.abs(read(marks.mark(large)) - own).max() < 12 and np.abs(read(marks.mark(IMAGES[1])) - own).max() > 25


def test_a_map_gets_a_mark_of_each_decoded_image():
    """Images may be decoded in any order, and may have several maps. The map of a single image must have no mark."""
    saved = {"images": 3}
    other = {"images": 3}
    single = {"images": 1}
    marks.expect(VECTORS, saved)
    marks.expect(VECTORS, other)
    marks.expect(VECTORS[:1], single)
    marks.note(VECTORS[2:], IMAGES[2:])
    marks.note(VECTORS[:1], IMAGES[:1])
    marks.note(VECTORS[:1] + 1, IMAGES[1:2])
    assert saved["marks"] == other["marks"] == [marks.mark(IMAGES[0]), None, marks.mark(IMAGES[2])]
    assert "marks" not in single


def test_the_number_of_waiting_maps_is_limited():
    """The oldest maps must be dropped.

    This includes maps of images that are never decoded, and maps of one image in many nodes.
    """
    maps = [{"images": 3} for _ in range(300)]
    for number, saved in enumerate(maps):
        marks.expect(VECTORS + 10 + number, saved)
    same = [{"images": 3} for _ in range(6)]
    for saved in same:
        marks.expect(VECTORS - 10, saved)
    for number in range(300):
        marks.note(VECTORS[:1] + 10 + number, IMAGES[:1])
    marks.note(VECTORS[:1] - 10, IMAGES[:1])
    assert "marks" not in maps[0] and "marks" in maps[-1] and sum("marks" in saved for saved in maps) < 100
    assert ["marks" in saved for saved in same] == [False] * 2 + [True] * 4
