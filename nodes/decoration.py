"""Guard for optional additions to an image, such as maps, previews and lines of text.

An error in such an addition is logged. The run continues, and the user gets the image without the addition.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management as mm


@contextmanager
def decorating(what: str) -> Iterator[None]:
    """Log errors of the `with` block instead of raising them. ComfyUI's interruption is raised.

    Args:
        what: Name of the addition, for the log.
    """
    try:
        yield
    except mm.InterruptProcessingException:  # an Exception in older versions of ComfyUI
        raise
    except Exception:
        logging.warning("ADT-Tree: %s is left out, since it could not be made.", what, exc_info=True)
