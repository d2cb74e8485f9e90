"""Training loop, optimisers, schedules, checkpoints, seeds."""
