"""Fuzz tests: hostile and damaged inputs of each kind must lead to a result or to an error message of one sentence.

``python -m tests.fuzz --inputs 20000`` tries the given number of inputs, ``test_fuzz.py`` a few of each kind. A fuzzer
is a function that prepares a folder and returns a function that tries one input. Hypothesis generates the inputs from a
seed.
"""
