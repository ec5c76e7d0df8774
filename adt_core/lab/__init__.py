"""Benchmarks of decoding methods, and training of drafters.

Commands of `python adt.py` and the nodes Benchmark and Train Drafter use this package. Other packages in `adt_core` do
not import it.
"""
