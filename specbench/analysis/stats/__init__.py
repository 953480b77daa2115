"""Statistics of plain arrays: intervals and tests."""
