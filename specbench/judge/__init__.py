"""Judging finished runs: compare, check, verify, and the page over many runs."""
