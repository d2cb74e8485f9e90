"""Dashed contours, drawn by a generator of our own or read."""
