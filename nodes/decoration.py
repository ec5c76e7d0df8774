"""What only decorates an image: maps, previews, lines of text. An image is never lost for it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management as mm


@contextmanager
def decorating(what: str) -> Iterator[None]:
    """Where the block fails, the log says so, and the run goes on without it. Cancelling comes through.

    what: the decoration's name, for the log.
    """
    try:
        yield
    except mm.InterruptProcessingException:  # an Exception in older versions of ComfyUI
        raise
    except Exception:
        logging.warning("ADT-Tree: %s is left out, since it could not be made.", what, exc_info=True)
