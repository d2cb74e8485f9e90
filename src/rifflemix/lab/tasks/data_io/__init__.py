"""Data files: find, download, read with size limits, decode and cache."""
