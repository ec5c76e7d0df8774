"""The laboratory of ADT-Tree, beside the package ``adt_core``: benchmarks of methods, and the training of drafters.

``adt_core`` does without it. Its commands are in ``python adt.py``, and ComfyUI has the Benchmark node.
"""
