"""Suites: several comparisons with the same mixers."""
