"""Figures of README.md and docs: ``python -m benchmarks.figures`` measures them."""
