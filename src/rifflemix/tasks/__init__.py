"""Data sets: generate, fetch, verify, cache, collate."""
