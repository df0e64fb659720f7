"""Sharding rules: layouts of arrays, their propagation and redistribution."""
