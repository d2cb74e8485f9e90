"""Baseline mixers from the comparison tables of the papers."""
