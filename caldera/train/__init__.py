"""Training: models, `fit`, callbacks, checkpoints and run records."""
