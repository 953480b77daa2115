"""The engine: one target, one loop, one counter, one cache for every method."""
