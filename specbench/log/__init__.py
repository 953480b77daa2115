"""Read and write the files of a run: `run.json`, `samples.jsonl` and `trace.jsonl`."""
