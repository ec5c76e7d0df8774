"""Scripts that generate the training data and train the bundled model."""
