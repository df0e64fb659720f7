"""What a run leaves: history, record, summary, profile, TensorBoard."""
