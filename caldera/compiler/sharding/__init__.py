"""What layouts are, and what becomes of them: the one set of sharding rules."""
