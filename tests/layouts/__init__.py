"""Small random checkpoints in the published layouts, one module per family; Chameleon (Anole) is in tests/tiny.py."""
