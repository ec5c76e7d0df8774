"""Training: resumable runs, and EAGLE drafters for any target."""
