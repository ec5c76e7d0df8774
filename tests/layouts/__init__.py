"""Small random checkpoints in the published layouts, one module per family. Chameleon's (Anole) is in tests/tiny.py."""
