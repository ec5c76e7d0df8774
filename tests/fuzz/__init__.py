"""Fuzz tests.

For every hostile or damaged input, the code must return a result or raise an error with one sentence. ``python -m
tests.fuzz --inputs 20000`` tries 20,000 inputs; ``test_fuzz.py`` tries a few inputs of each kind. A fuzzer is a
function that prepares a folder, and returns a function that tries one input. Hypothesis generates the inputs from a
seed.
"""
