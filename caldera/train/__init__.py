"""Training: models, `fit`, callbacks, checkpoints, what a run leaves behind."""
