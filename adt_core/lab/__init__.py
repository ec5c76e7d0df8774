"""Benchmarks of decoding methods, and training of drafters.

Nothing else in `adt_core` imports this package. Its commands are part of `python adt.py`, and its nodes are Benchmark
and Train Drafter.
"""
