"""Judges of finished runs: comparisons, the gate, checks of files, and the page over many runs."""
