"""Readers of checkpoint files, which are not trusted."""
