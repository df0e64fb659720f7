"""Checkpoints, snapshots and model files."""
