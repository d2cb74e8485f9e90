"""Generated tasks with known answers: recall, copying, state tracking."""
