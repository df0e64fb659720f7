"""Benchmark scripts, in folders by subject; their results are in `results`."""
