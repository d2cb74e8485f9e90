"""Nested list operations, generated or read from files."""
