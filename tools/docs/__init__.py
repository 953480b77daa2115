"""What the documentation site needs besides MkDocs."""
