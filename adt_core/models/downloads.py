"""What families say of downloads: models that this version reads, what belongs beside them, and drafters.

All are repositories on Hugging Face. Sizes that nobody states are computed from the number of weights, and say "about".
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import pip_install

PLACE = Path("models/ar_image")
"""Where models belong in ComfyUI's folder."""


class Download(NamedTuple):
    """A repository, or some ``files`` of it.

    size: in words. folder: where it belongs below the folder of the models, "" for that one itself.
    """

    repository: str
    size: str
    licence: str
    folder: str
    files: tuple[str, ...] = ()

    def command(self, home: Path) -> str:
        """What fetches it, to be copied to a terminal. It goes on where it stopped. home: the folder of the models."""
        place = (home / self.folder).as_posix()
        place = f'"{place}"' if " " in place else place
        return " ".join(["hf download", self.repository, *self.files, "--local-dir", place])


class Published(NamedTuple):
    """A published model: a row of the table in docs/models.md, and a name in the loader's list.

    name: of its folder or file in ``models/ar_image``. downloads: all that it needs. pixels: per side of its images.
    memory: with weights in bfloat16 / int8. drafter: that was trained for it. libraries: packages it needs besides.
    """

    name: str
    downloads: tuple[Download, ...]
    pixels: str
    memory: str
    drafter: Download | None = None
    libraries: str = ""

    def how_to_get(self, home: Path = PLACE) -> str:
        """What to run, how large it is, and under which licence, as an order that ends a sentence."""
        steps = [f"`{part.command(home)}` ({part.size}; licence: {part.licence})" for part in self.downloads]
        if self.libraries:
            steps.append(f"`{pip_install(self.libraries)}`")
        return f"run {', then '.join(steps)}"
