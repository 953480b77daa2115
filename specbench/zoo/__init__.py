"""The embedded tiny models: the text they learn, how they are trained, and their files.

Importing this package imports neither torch nor transformers.
"""
