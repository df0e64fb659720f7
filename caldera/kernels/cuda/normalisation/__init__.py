"""Batch, group, layer and local response normalisation."""
