"""Soak tests. Many different runs in one process must have correct results and must not leak resources."""
