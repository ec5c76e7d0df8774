"""GPU benchmark: ``python -m benchmarks.gpu`` runs every part of it."""
