"""One run that measures everything on a GPU: ``python -m benchmarks.gpu``."""
