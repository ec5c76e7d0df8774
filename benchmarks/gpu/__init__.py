"""GPU benchmark: ``python -m benchmarks.gpu`` runs all of its parts."""
