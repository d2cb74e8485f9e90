"""Backbones that take any mixer."""
