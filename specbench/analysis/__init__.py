"""Compute the numbers of runs from their records."""
