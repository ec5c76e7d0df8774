"""What every part of the package may raise or call."""

from collections.abc import Callable

Check = Callable[[], None]
"""Called often while something long goes on; may raise to cancel it."""


class AdtError(ValueError):
    """A wrong input, said in one sentence: which input, what was expected, what to do."""
