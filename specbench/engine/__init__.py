"""The engine: one target, loop, token count and cache for every method."""
