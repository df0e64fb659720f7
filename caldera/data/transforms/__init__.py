"""Stages of a pipeline: decode, crop, mirror, rotate, colour, normalise."""
