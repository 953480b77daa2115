"""The suite for a GPU: checks of the machine and of captured graphs, and speeds against limits.

    python -m benchmarks.gpu [--model M ...] [--output DIR] [--device cuda] [--seconds N]
    python -m benchmarks.gpu --plan --output DIR --seconds 570
    python -m benchmarks.gpu --plan --list

Run it from the repository's root. It needs no installation and no network: the models are stand-ins
in the shapes of real ones, with the tokens of tiny. Every part is a process with a time limit.
`make gpu` runs the first form: `specbench doctor`, the checks, the suite on three models, a report.

The second form is for a GPU that is available for minutes at a time. It has more parts, the most
important first. `--seconds` is the time for all of them: a part whose estimate does not fit is left
for a later call with the same `--output`. Failed parts are retried at the end. `--only` and
`--from` select parts by name, or by the word before the first "-" (`--only suite`). `--list` shows
the parts with estimates, limits and results.

    parts.jsonl   a line for each part when it ends: status, seconds, figures, reason of a failure
    table.txt     the parts, the goals with verdicts, and the figures of each model
    NAME/         the output of a part: its log, its figures line by line, its runs

With `--work`, these folders are there, and `runs.tar.gz` beside the other two files contains them.
To continue on another machine, copy the three files. To test all that works without a GPU, use
`--device cpu --dtype float32 --model tiny --limit 1 --max-new-tokens 4 --contexts 64`.
"""
