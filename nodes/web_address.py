"""Address under which ComfyUI serves the pack's scripts."""

import logging
from pathlib import Path
from urllib.parse import quote

from nodes import EXTENSION_WEB_DIRS  # ComfyUI's module of this name

NAME = "ADT-Tree"


def register(folder: str = Path(__file__).parents[1].name) -> None:
    """Serve the scripts under the pack's name if the folder's name cannot be part of an address.

    ComfyUI serves the scripts of a pack under the name of the pack's folder. If this name has spaces, brackets or
    letters that are not ASCII, ComfyUI answers 404. This function cannot change the address of the help pages and the
    templates, so it logs a warning.

    Args:
        folder: Name of the pack's folder in `custom_nodes`.
    """
    if quote(folder) == folder or folder not in EXTENSION_WEB_DIRS:
        return
    EXTENSION_WEB_DIRS.setdefault(NAME, EXTENSION_WEB_DIRS.pop(folder))
    logging.warning(
        "ADT-Tree: the folder is called '%s', and ComfyUI's page cannot open addresses with this name, so the nodes "
        "have no help pages and no templates; rename the folder to %s.",
        folder,
        NAME,
    )
