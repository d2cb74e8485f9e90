"""Shared parts of mixers with long convolutions and state spaces."""
