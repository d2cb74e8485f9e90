"""Nested list operations, generated or read."""
