"""The formats of other tools. Each has a file, with its description `FORMAT`."""
