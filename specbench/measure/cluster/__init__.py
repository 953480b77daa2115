"""Use a Ray cluster as the backend of a run. A driver writes the run, and workers measure it.

`connection` connects to Ray, `setup` starts the workers of a run, `driver` hands them samples and
stores their records, and `worker` completes samples. `messages` has the messages between them.
Ray places the workers, restarts those that die, transfers the messages and keeps logs.
"""
