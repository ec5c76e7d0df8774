"""Guard for decorations of an image, such as maps, previews and lines of text: their errors never lose the image."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management as mm


@contextmanager
def decorating(what: str) -> Iterator[None]:
    """Log errors of the block instead of raising them, except ComfyUI's interruption.

    Args:
        what: Name of the decoration, for the log.
    """
    try:
        yield
    except mm.InterruptProcessingException:  # an Exception in older versions of ComfyUI
        raise
    except Exception:
        logging.warning("ADT-Tree: %s is left out, since it could not be made.", what, exc_info=True)
