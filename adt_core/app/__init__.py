"""Prompts become files."""
