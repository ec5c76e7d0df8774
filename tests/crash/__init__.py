"""Power cuts: commands are killed at random and at chosen moments, and nothing that was finished may be lost.

``python -m tests.crash --kills 100`` takes about forty minutes on two busy cores. ``tests/crash/test_kills.py`` is a
small part of it.
"""
