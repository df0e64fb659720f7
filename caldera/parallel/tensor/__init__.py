"""Tensor parallelism: sharding rules, propagation, hybrids."""
