"""Address under which ComfyUI serves the pack's scripts."""

import logging
from pathlib import Path
from urllib.parse import quote

from nodes import EXTENSION_WEB_DIRS, NODE_CLASS_MAPPINGS  # ComfyUI's module of this name

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


def warn_of_copies(node_id: str) -> None:
    """Log a remark if another copy of the pack, in another folder of `custom_nodes`, has registered this node."""
    other = NODE_CLASS_MAPPINGS.get(node_id)
    package = other.__module__.split(".nodes.")[0] if other is not None else ""
    if package not in ("", __name__.split(".nodes.")[0]):
        logging.warning(
            "ADT-Tree: custom_nodes has two copies of this pack, %s and %s, and ComfyUI uses the nodes of one of them; "
            "remove one.",
            package,
            Path(__file__).parents[1],
        )
