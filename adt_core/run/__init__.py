"""A run: its recipe, its jobs, the loop that decodes them, and the store of its images."""
