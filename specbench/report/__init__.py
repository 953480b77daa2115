"""Numbers -> tables, plots and a live console. Nothing is measured or computed here."""
