"""Helpers of the documentation site besides MkDocs."""
