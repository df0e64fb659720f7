"""Texts as numbers: tokenizers that are fitted once, and kept with the model."""
