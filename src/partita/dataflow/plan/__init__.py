"""What to run, in which order, what to keep: decided from the flow's graph and from what was measured so far. No I/O."""
