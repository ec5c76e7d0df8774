"""Version of this node pack, and number of the format of its files."""

VERSION = "0.2.0"
"""As in pyproject.toml and js/preferences.js."""
FORMAT = 3
"""Number of the format of PNG settings, traces and batch folders.

A file of another number is refused. Increase it when the meaning of a file changes, or the noise of a seed.
"""
WORKFLOW_FORMAT = 1
"""Number of the format of nodes in workflows; js/format.js has the same number."""
