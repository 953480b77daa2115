"""Numbers -> tables, plots and a live console."""
