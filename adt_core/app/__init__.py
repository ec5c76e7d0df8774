"""Application layer: the commands, which turn prompts into image files."""
