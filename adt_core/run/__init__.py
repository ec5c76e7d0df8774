"""A run: its recipe, its jobs, the loop that decodes them, the store of its images, and races between methods."""
