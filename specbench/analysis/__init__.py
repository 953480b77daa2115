"""The numbers of runs, from their records. Loads no model and prints nothing."""
