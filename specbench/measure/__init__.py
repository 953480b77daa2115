"""Measuring, from the user's options to records on disk, in one direction:

spec -> plan -> header -> backend -> requests -> records

`spec` checks values, `plan` resolves names and files, `header` describes the plan in `run.json`, a
backend completes requests, and `runner` makes requests of prompts and records of completions.
`session` runs these in order. No stage knows a later one.
"""
