"""Statistics that know nothing of runs: intervals, trends and tests."""
