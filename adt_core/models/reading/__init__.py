"""Reading of checkpoints. The files are not trusted: the readers check each file before they use its content."""
