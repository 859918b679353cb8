"""Results of runs: read, logged and summarised."""
