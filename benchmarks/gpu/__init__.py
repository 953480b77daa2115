"""The suite for a GPU: tests, then runs whose speeds are compared with goals, and a run to record.

    python -m benchmarks.gpu [--model M ...] [--output DIR] [--device cuda] [--seconds N]
    python -m benchmarks.gpu --list
    python -m benchmarks.gpu --dry-run                          # small rows, on a CPU

Run it from the repository's root. It needs no installation and no network. The models are stand-ins
in the shapes of real models, with the tokens of tiny. Each row is a run or a command. It has a
process of its own with a time limit, and is tried at most twice. The most important rows come
first. The same command continues where it ended: complete rows are left out, runs continue, and
commands start over. `--seconds` is the time for one call. `--only` selects rows by name, or by the
word before the first "-" (`--only run`). The exit status is 0 if all required rows are complete and
no bug was found.

    rows.jsonl    a line for each row when it ends: status, seconds, reason of a failure
    NAME/         a row: a run, or a command's log and figures as lines of JSON
    triton/       compiled kernels, for all rows and calls
    table.txt     the rows, and the goals with their verdicts
"""
