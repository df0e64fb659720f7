"""Data parallelism: all-reduced gradients, sharded optimizers, buckets."""
