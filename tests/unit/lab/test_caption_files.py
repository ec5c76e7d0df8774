"""Tests of the caption files of training images, such as 1.txt next to 1.jpg."""

import os

import pytest
from PIL import Image

from adt_core.files import foreign_text
from adt_core.lab.training.dataset import LARGEST_CAPTION, find_captioned
from tests.raising import raises_key


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "1.jpg")
    return tmp_path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_captions_are_utf8(folder, encoding):
    (folder / "1.txt").write_bytes("一只 café\r\n".encode(encoding))
    assert find_captioned(folder)[1] == ["一只 café"]


TEXTS = {
    "cp1252": ("Windows-1252", "Café für Jürgen, à la plage"),
    "latin-1": ("Windows-1252", "a caf\xe9"),
    "gbk": ("GBK", "一只红色的猫, on a mat"),
    "gb18030": ("GBK", "一只红色的猫"),
    "utf-16": ("UTF-16", "a cat"),
    "utf-16-be": ("UTF-16", "a cat"),
    "utf-16-le": ("UTF-16", "a cat"),
}
"""Encoding of Python -> the name in the message, and a caption."""


@pytest.mark.parametrize("encoding", TEXTS)
def test_another_encoding_is_named(folder, encoding):
    name, caption = TEXTS[encoding]
    (folder / "1.txt").write_bytes(caption.encode(encoding))
    with raises_key("caption.not_text", path=folder / "1.txt", kind=f"probably in {name}"):
        find_captioned(folder)


def test_a_beginning_may_end_within_a_character():
    assert "GBK" in foreign_text("一只红色的猫".encode("gbk")[:-1])


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_a_missing_caption(folder, content):
    if content is not None:
        (folder / "1.txt").write_bytes(content)
    with raises_key("caption.missing", path="1.jpg", file="1.txt"):
        find_captioned(folder)


def test_a_caption_that_cannot_be_read(folder):
    (folder / "1.txt").write_bytes(b"a" * (LARGEST_CAPTION * 2**20 + 1))
    with raises_key("caption.unreadable", path="1.txt", reason="it has 1 MiB, but at most 1"):
        find_captioned(folder)
    os.remove(folder / "1.txt")
    (folder / "1.txt").mkdir()
    with raises_key("caption.unreadable", path="1.txt"):
        find_captioned(folder)
