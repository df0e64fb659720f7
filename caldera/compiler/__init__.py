"""From expressions to a plan: lazy expressions, graph passes, sharding, kernel calls."""
