"""Guard for optional additions to an image, such as maps, previews and lines of text.

An error in such an addition is logged. The run continues, and the user gets the image without the addition.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management as mm


@contextmanager
def decorating(what: str) -> Iterator[None]:
    """Log errors of the `with` block instead of raising them.

    The exception with which ComfyUI cancels a run is still raised.
    """
    try:
        yield
    except mm.InterruptProcessingException:  # in older versions of ComfyUI, this is a subclass of Exception
        raise
    except Exception:
        logging.warning("ADT-Tree: %s is left out, since it could not be made.", what, exc_info=True)
