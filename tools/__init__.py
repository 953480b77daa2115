"""Programs that made files of the package. The package does not contain the programs."""
