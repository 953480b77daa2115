"""`specbench check`: the CI gate, a run against a baseline run."""
