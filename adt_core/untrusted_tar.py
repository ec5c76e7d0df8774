"""Reading of small files in tars that are not trusted.

Python's `tarfile` reads the headers of a tar before it returns a member. A header of 1 KiB can make it allocate any
amount of memory: sparse members, extended headers (pax) and long names of GNU tar have their own lengths. This
module reads only the plain headers that this pack writes, and refuses the others.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from .errors import shown

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
"""Last bytes of a complete tar."""
MOST_MEMBERS = 100_000
"""Maximum number of members of a tar."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


def small_members(
    file: BinaryIO, suffix: str = "", most_bytes: int = 2**20, most_members: int = MOST_MEMBERS
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each regular member whose name ends in `suffix`. Other members are skipped.

    Args:
        file: Tar without compression.
        most_bytes: Maximum size of a member that is read.
        most_members: Maximum number of members, including those that are skipped.

    Raises:
        ValueError: If the tar is damaged or cut off, has a member that is no regular file with a plain header, or
            exceeds a maximum.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - len(END)))
    if file.read() != END or size % BLOCK:
        raise ValueError("the end of the tar is missing")
    place = 0
    for _ in range(most_members):
        file.seek(place)
        header = file.read(BLOCK)
        if not any(header):
            return
        member = _member(header)
        place += BLOCK
        if member.size > size - place:
            raise ValueError(f"member {shown(member.name)} of the tar ends after the tar")
        if member.name.endswith(suffix):
            if member.size > most_bytes:
                raise ValueError(
                    f"member {shown(member.name)} has {member.size} bytes, but at most {most_bytes} are read"
                )
            yield member.name, file.read(member.size)
        place += -(-member.size // BLOCK) * BLOCK
    raise ValueError(f"the tar has more than {most_members} members")


def _member(header: bytes) -> tarfile.TarInfo:
    """Return the member that a block describes."""
    try:
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise ValueError(f"the tar is damaged ({error})") from None
    if member.type not in _REGULAR or member.size < 0:
        raise ValueError(f"member {shown(member.name)} of the tar is not a regular file with a short name")
    return member
