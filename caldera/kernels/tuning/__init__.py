"""Which kernel serves a node: candidates are measured, predicted, chosen and remembered."""
