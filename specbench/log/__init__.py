"""The files of a run (`run.json`, `samples.jsonl`, `trace.jsonl`): one reader, one writer."""
