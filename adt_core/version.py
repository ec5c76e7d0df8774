"""The version of the pack; pyproject.toml says the same."""

VERSION = "0.2.0"
