"""Baselines with a state that each token updates and reads: recurrences and long convolutions."""
