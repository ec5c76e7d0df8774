"""What every part of the package may raise or call."""

from collections.abc import Callable

Check = Callable[[], None]
"""Called often while something long goes on; may raise to cancel it."""


class AdtError(ValueError):
    """A wrong input, said in one sentence: which input, what was expected, what to do."""


def shown(value: object, most: int = 40) -> str:
    """A wrong value for a sentence, cut to ``most`` characters. Python prints no number of thousands of digits."""
    try:
        return repr(value)[:most]
    except ValueError:
        return "absurd"
