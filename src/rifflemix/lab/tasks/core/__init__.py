"""Base classes of all tasks, and helpers that do not depend on the data."""
