"""Environment variables. No other module of this package reads them, and no module writes them."""

import os


def variable(name: str, default: str = "") -> str:
    """Return the value of an environment variable, or `default` if it is not set."""
    return os.environ.get(name, default)
