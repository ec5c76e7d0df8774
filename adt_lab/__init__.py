"""The laboratory of ADT-Tree, beside the package ``adt_core``: benchmarks of methods, and the training of drafters.

``adt_core`` does without it. Its commands are in ``python -m adt_core``, and ComfyUI has the Benchmark node.
"""
