"""Runs of the engine, which the command line, the nodes and the benchmarks share."""
