"""Check of the error that a block raises. Tests compare keys; the sentences are tested in one place, by their table."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def raises_key(key: str, /, **values: Any) -> Iterator[pytest.ExceptionInfo]:
    """Check that the block raises an AdtError with this key and these values; see `check_error`."""
    with pytest.raises(ValueError) as raised:
        yield raised
    check_error(raised.value, key, **values)


def check_error(error: Any, key: str, /, **values: Any) -> None:
    """Check the key of an AdtError and some of the values of its sentence.

    Args:
        **values: Values by name. A part of a text is enough, such as the name of a file instead of its path. For a
            value that is an error or a message, its key is enough.
    """
    assert error.key == key, f"{error.key}: {error}"
    for name, value in values.items():
        found = error.parameters[name]
        is_key = hasattr(found, "parts") and found.parts[0].key == value
        is_equal = str(value) in found if isinstance(found, str) else value == found
        assert is_key or is_equal, f"{name} is {found}"
