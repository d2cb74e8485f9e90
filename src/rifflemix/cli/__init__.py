"""The command line: thin; imports everything, nothing imports it."""

from rifflemix.cli.app import app, main

__all__ = ["app", "main"]
