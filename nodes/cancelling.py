"""Note under a cancelled node about the results that are kept."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import comfy.model_management as mm

from .comfy_runtime import tell
from .log_errors import decorating


@contextmanager
def telling_what_is_kept(kept: Callable[[], str]) -> Iterator[None]:
    """Show a line of text under the running node if the user cancels the `with` block.

    ComfyUI itself shows nothing under a cancelled node.

    Args:
        kept: Function that returns the text: how much is kept, and how to continue. "" shows nothing.
    """
    try:
        yield
    except mm.InterruptProcessingException:
        with decorating("the note on the cancelled run"):
            if note := kept():
                tell(note, logging.INFO)
        raise
