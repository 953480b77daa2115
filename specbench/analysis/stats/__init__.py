"""Compute intervals and tests from plain arrays."""
