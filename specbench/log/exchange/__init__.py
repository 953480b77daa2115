"""Result files of other tools: read into runs, and written from runs."""
