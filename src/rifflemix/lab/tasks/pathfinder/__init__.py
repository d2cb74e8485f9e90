"""Dashed contours, drawn by our own generator or read from files."""
