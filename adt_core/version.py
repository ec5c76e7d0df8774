"""Version of this node pack, and number of the format of its files."""

VERSION = "0.2.0"
"""As in pyproject.toml and js/preferences.js."""
FORMAT = 1
"""Number of the format of PNG settings, batch folders and workflow nodes; js/format.js has the same number.

A file of another number is refused. Increase it when the meaning of a file changes, or the noise of a seed.
"""
