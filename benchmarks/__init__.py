"""Benchmarks of speed, losslessness and memory. Most modules are commands, such as ``python -m benchmarks.auto``."""
