"""Models for molecular graphs."""
