"""Training of EAGLE drafters for any target, in resumable runs."""
