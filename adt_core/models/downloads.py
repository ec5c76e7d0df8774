"""Published models: repositories on Hugging Face that this version can load."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import command


class Download(NamedTuple):
    """Repository to download, or some of its files.

    Attributes:
        repository: "owner/name" on Hugging Face.
        gigabytes: Size in GB (1e9 bytes), approximate.
        licence: As far as known; the page of the repository decides.
        folder: Its folder, relative to the folder of the models; "" for that folder itself.
        files: Files to download; the complete repository if empty.
    """

    repository: str
    gigabytes: float
    licence: str
    folder: str
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of its folder or, without one, of its file."""
        return self.folder or self.files[0]

    @property
    def size(self) -> str:
        """Size with its unit."""
        return in_gigabytes(self.gigabytes)

    def command(self, home: Path) -> str:
        """Return the command that downloads it. The same command resumes an interrupted download.

        Args:
            home: Folder of the models.
        """
        return download_command(self.name, home)


class Published(NamedTuple):
    """Published model: a row of the table in docs/models.md and a name in the Model Loader's list.

    Attributes:
        name: Name of its folder or file in ``models/ar_image``.
        downloads: Everything that it needs, first its own repository. Empty for the bundled model.
        pixels: Pixels per side of its images.
        memory: GiB on a GPU with weights in bfloat16 and in int8.
        drafter: Drafter that was trained for it.
    """

    name: str
    downloads: tuple[Download, ...]
    pixels: str
    memory: tuple[float, float]
    drafter: Download | None = None

    @property
    def gigabytes(self) -> float:
        """Size of everything that is downloaded, the drafter included, in GB."""
        return sum(one.gigabytes for one in (*self.downloads, *([self.drafter] if self.drafter else [])))

    @property
    def size(self) -> str:
        """Size of everything that is downloaded, with its unit."""
        return in_gigabytes(self.gigabytes)

    @property
    def licences(self) -> str:
        """Licences of everything that is downloaded."""
        own, *others = self.downloads
        different = {f"{one.name}: {one.licence}" for one in others if one.licence != own.licence}
        return "; ".join([own.licence, *sorted(different)])

    def how_to_get(self, home: Path) -> str:
        """Return the command that downloads it, its size and licence, as an imperative that ends a sentence.

        Args:
            home: Folder of the models.
        """
        return f"run `{download_command(self.name, home)}` ({self.size}; licence: {self.licences})"


def download_command(name: str, home: Path) -> str:
    """Return the command that downloads a published model, or a part of one, to a folder of models."""
    return command(f"download {name} --to", home)


def in_gigabytes(gigabytes: float) -> str:
    """Return a size with its unit, such as "15 GB", "0.3 GB" or "6 MB"."""
    if gigabytes < 0.05:
        return f"{gigabytes * 1000:.0f} MB"
    return f"{gigabytes:.0f} GB" if gigabytes >= 10 else f"{gigabytes:.1f}".removesuffix(".0") + " GB"
