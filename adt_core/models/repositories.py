"""Published models that this version can load: their repositories on Hugging Face, and how to download them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import command
from ..messages import Message, message


class Download(NamedTuple):
    """Hugging Face repository to download, completely or in part.

    Attributes:
        repository: Name of the repository, as "owner/name".
        gigabytes: Approximate size of the download in GB (1e9 bytes).
        licence: Name of the licence. The page of the repository is authoritative.
        folder: Folder for the files, relative to the folder of all models; "" for the folder of all models itself.
        files: Names of the files to download; () for all files of the repository that a loader reads.
        commit: Hash of the commit to download, if a public source states it; "" for the newest commit.
        weights: Folders of the repository that must contain a configuration and weights, if `files` is empty.
    """

    repository: str
    gigabytes: float
    licence: str
    folder: str
    files: tuple[str, ...] = ()
    commit: str = ""
    weights: tuple[str, ...] = ("",)

    @property
    def name(self) -> str:
        """Name of the folder; if there is none, name of the first file."""
        return self.folder or self.files[0]

    @property
    def size(self) -> str:
        """Size of the download with its unit, such as "15 GB"."""
        return in_gigabytes(self.gigabytes)

    def command(self, home: Path) -> str:
        """Return the shell command that starts the download, or resumes it after an interruption."""
        return download_command(self.name, home)


class Published(NamedTuple):
    """Published model: a row of the table in docs/models.md and a name in the Model Loader's list.

    Attributes:
        name: Name of the model's folder or file in ``models/ar_image``.
        downloads: All downloads that the model needs. The first one is the model's own repository. Empty for the
            bundled model.
        pixels: Sides of the model's images in pixels, as text for the table.
        memory: GPU memory in GiB that the model needs: with bfloat16, int8 and int4 weights.
        drafter: Download of a drafter that was trained for the model, if there is one.
    """

    name: str
    downloads: tuple[Download, ...]
    pixels: str
    memory: tuple[float, float, float]
    drafter: Download | None = None

    @property
    def gigabytes(self) -> float:
        """Total size of all downloads in GB, including the drafter."""
        return sum(one.gigabytes for one in (*self.downloads, *([self.drafter] if self.drafter else [])))

    @property
    def size(self) -> str:
        """Total size of all downloads with its unit, including the drafter."""
        return in_gigabytes(self.gigabytes)

    @property
    def licences(self) -> str:
        """Licence of the model, then those licences of its other downloads that differ from it."""
        return licences(self.downloads)

    def how_to_get(self, home: Path) -> Message:
        """Return how to download the model, with size and licences, as the end of an error message."""
        command = download_command(self.name, home)
        return message("remedy.download", command=command, size=self.size, licences=self.licences)


def licences(downloads: Sequence[Download]) -> str:
    """Return the licence of the first download, then those licences of the others that differ from it."""
    own, *others = downloads
    different = {f"{one.name}: {one.licence}" for one in others if one.licence != own.licence}
    return "; ".join([own.licence, *sorted(different)])


def page_of(repository: str) -> str:
    """Return the address of a repository's page, with its licence, and its terms if it is gated."""
    return f"https://huggingface.co/{repository}"


def download_command(name: str, home: Path) -> str:
    """Return the shell command that downloads a published model, or one of its parts, to the folder ``home``."""
    return command(f"download {name} --to", home)


def in_gigabytes(gigabytes: float) -> str:
    """Return a size with its unit, such as "15 GB", "0.3 GB" or "6 MB"."""
    if gigabytes < 0.05:
        return f"{gigabytes * 1000:.0f} MB"
    return f"{gigabytes:.0f} GB" if gigabytes >= 10 else f"{gigabytes:.1f}".removesuffix(".0") + " GB"
