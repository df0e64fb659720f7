"""Choice of a node's kernel: candidates are measured, predicted, chosen and remembered."""
