"""The base of all tasks, and parts that do not depend on the data."""
