"""Copies, transposes, concatenation, padding."""
