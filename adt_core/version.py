"""Version of this node pack. The version in pyproject.toml must be the same."""

VERSION = "0.2.0"
