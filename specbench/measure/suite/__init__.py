"""Make the runs of a recipe in one folder, with one report."""
