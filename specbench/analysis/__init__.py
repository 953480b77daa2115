"""The numbers of runs, computed from their records."""
