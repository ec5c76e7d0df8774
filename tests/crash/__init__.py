"""Crash tests.

Commands are killed at random and at chosen moments. A killed command must not lose finished results. ``python -m
tests.crash --kills 100`` needs about forty minutes on two busy cores. ``tests/crash/test_kills.py`` runs a few kills.
"""
