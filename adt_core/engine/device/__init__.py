"""Facts about the device: cost profiles, invariance trials, free memory, CPU threads."""
