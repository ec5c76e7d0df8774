"""Objects that the package exports on first use."""

# ruff: noqa: F401

from .benchmark import Benchmark, BenchmarkWorker, has_network, measure_missing, write_results
from .quality import QualityMetrics, choose_metrics
