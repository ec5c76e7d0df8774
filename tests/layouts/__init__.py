"""Small random checkpoints in the published layouts, one module per family. tests/tiny.py has Chameleon (Anole)."""
