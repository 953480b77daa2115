"""Workers that complete the samples of a run elsewhere, while one driver owns the run's folder."""
