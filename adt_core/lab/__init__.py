"""Benchmarks of decoding methods, and training of drafters.

Commands of `python adt.py` and the nodes Benchmark and Train Drafter use this package. Other packages in `adt_core` do
not import it.

Names for nodes and other programs, which are imported on first use:

- A `Benchmark` says what to measure. `measure_missing` lets a `BenchmarkWorker` measure the prompts that have no record
  yet, and `write_results` writes the tables. `has_network` tells which methods are possible.
- `QualityMetrics` score images; `choose_metrics` returns those for which there are weights.

The modules `paper` (tables of the ADT-Tree paper), `presets` (names of methods) and `training` are public.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Benchmark", "BenchmarkWorker", "QualityMetrics", "choose_metrics", "has_network", "measure_missing",
    "write_results",
]  # fmt: skip

if TYPE_CHECKING:
    from .api import *
else:

    def __getattr__(name: str):
        if name in __all__:
            from . import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
