"""What the commands of `deva` do, a module each: its `run` takes what `usage` has read."""
