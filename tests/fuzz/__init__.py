"""Hostile and damaged inputs of every kind. Each must end in a result or in one sentence.

``python -m tests.fuzz --inputs 20000`` tries that many; ``test_fuzz.py`` a few of each kind. A *fuzzer* is a function
that prepares a folder and returns what tries one input; hypothesis draws the inputs, the same for the same seed.
"""
