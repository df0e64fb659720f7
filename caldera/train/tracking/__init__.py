"""Records of runs: history, record, summary, profile, TensorBoard."""
