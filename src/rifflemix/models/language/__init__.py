"""Models that predict tokens."""
