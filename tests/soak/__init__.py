"""Soak tests: many different runs in one process, which must come out right and leave nothing behind."""
