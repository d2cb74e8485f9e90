"""What every long command shares: folder, status, environment, threads, fitting a model to a task."""
