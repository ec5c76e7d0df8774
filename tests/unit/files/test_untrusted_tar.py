"""Tests of the reader of tars that somebody else may have written."""

import io
import tarfile
import tracemalloc

import pytest

from adt_core.untrusted_tar import small_members


def packed(*members, format=tarfile.USTAR_FORMAT):
    """Return a tar of (name, content, attributes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, content, *more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more:
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def with_header(change):
    """Return a tar whose first header is changed, with a valid checksum."""
    content = bytearray(packed(("a.json", b"{}")))
    header = content[:512]
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(content[512:])


def set_size(header, size):
    header[124:136] = b"\x80" + size.to_bytes(11, "big")


def test_members_with_a_suffix_are_read():
    tar = packed(("a.png", b"x" * 700), ("a.json", b'{"id": 1}'), ("b.json", b""))
    assert list(small_members(io.BytesIO(tar), ".json")) == [("a.json", b'{"id": 1}'), ("b.json", b"")]
    assert len(list(small_members(io.BytesIO(tar)))) == 3


def test_tars_of_webdataset_are_read():
    writer = pytest.importorskip("webdataset").TarWriter
    buffer = io.BytesIO()
    with writer(buffer, mtime=0) as tar:
        tar.write({"__key__": "000001", "png": b"\x89PNG", "json": b"{}"})
    assert dict(small_members(io.BytesIO(buffer.getvalue()), ".json")) == {"000001.json": b"{}"}


HOSTILE = {
    "sparse": with_header(lambda header: header.__setitem__(slice(156, 157), b"S")),
    "8 GiB": with_header(lambda header: set_size(header, 8 * 2**30)),
    "negative": with_header(lambda header: header.__setitem__(slice(124, 136), b"\xff" * 12)),
    "link": packed(("a.json", b"", ("type", tarfile.SYMTYPE), ("linkname", "/etc/passwd"))),
    "pax": packed(("é" * 200 + ".json", b"{}"), format=tarfile.PAX_FORMAT),
    "GNU long name": packed(("a" * 200_000 + ".json", b"{}"), format=tarfile.GNU_FORMAT),
    "pax size": packed(("a.json", b"{}", ("pax_headers", {"GNU.sparse.size": "9" * 9000})), format=tarfile.PAX_FORMAT),
    "no end": packed(("a.json", b"{}"))[:1536],
    "cut": packed(("a.json", b"{}"))[:700],
    "noise": bytes(range(256)) * 4 + bytes(1024),
    "large member": packed(("a.json", b" " * 2_000_000)),
    "many members": packed(*[("a.json", b"")] * 2000),
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tars_are_refused_in_little_memory(name):
    tracemalloc.start()
    with pytest.raises(ValueError) as refused:
        list(small_members(io.BytesIO(HOSTILE[name]), ".json", most_members=1000))
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200
