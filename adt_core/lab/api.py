"""Objects that the package exports on first use."""

from .benchmark import Benchmark, BenchmarkWorker, has_network, measure_missing, write_results
from .quality import QualityMetrics, choose_metrics
