"""Measure methods. Data goes in one direction, from the user's options to records on disk:

spec -> plan -> header -> backend -> requests -> records

`spec` checks values, `plan` resolves names and files, `header` describes the plan in `run.json`, a
backend completes requests, and `runner` turns prompts into requests and completions into records.
`session` runs these in order. No stage depends on a later one.
"""
