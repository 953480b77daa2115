"""The suite for a GPU: tests, then runs whose speeds are compared with goals, and a run to record.

    python -m benchmarks.gpu [--model M ...] [--output DIR] [--device cuda] [--seconds N]
    python -m benchmarks.gpu --list
    python -m benchmarks.gpu --dry-run                          # small rows, on a CPU

Run it from the repository's root. It needs no installation and no network: the models are stand-ins
in the shapes of real ones, with the tokens of tiny. Each row is a run or a command, in a process of
its own with a time limit, and is tried at most twice. The most important rows come first. The same
command continues where it ended: complete rows are left out, runs continue, commands start over.
`--seconds` is the time for one call, and `--only` selects rows by name, or by the word before the
first "-" (`--only run`). The exit status is 0 when all required rows are complete, without a bug.

    rows.jsonl    a line for each row when it ends: status, seconds, reason of a failure
    NAME/         a row: a run, or a command's log and its figures as lines of JSON
    triton/       compiled kernels, for all rows and calls
    table.txt     the rows, and the goals with their verdicts
"""
