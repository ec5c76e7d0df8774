"""Benchmark that measures the figures in README.md and docs: ``python -m benchmarks.figures``."""
