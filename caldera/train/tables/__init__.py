"""Training on tables: several members, validated on rows that they were not trained with."""
