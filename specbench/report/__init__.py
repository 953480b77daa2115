"""Show numbers as tables, plots and pages. Nothing is measured or computed here."""
