"""Measurements of speed, losslessness and memory; each module or package is a command."""
