"""Soak tests: many different runs in one process, which must have correct results and leak no resources."""
