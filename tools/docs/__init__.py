"""Programs for the documentation: hooks for MkDocs, and the tables of the README."""
