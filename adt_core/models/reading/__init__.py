"""Reading of checkpoints. Files are not trusted: each one is checked before its content is used."""
