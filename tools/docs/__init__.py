"""Programs for the documentation: MkDocs hooks, and the README's results."""
