"""Formats of other tools, one file each; `FORMAT` says how it is read."""
