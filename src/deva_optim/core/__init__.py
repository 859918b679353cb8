"""The step: what every method computes, for one process."""
