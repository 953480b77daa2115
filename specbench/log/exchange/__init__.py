"""Read result files of other tools into runs, and write such files from runs."""
