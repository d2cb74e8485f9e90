"""Mixers, tasks and models of other people: files of theirs, and packages that name them."""

from rifflemix.plugins.loading import load_plugin, plugin_files
from rifflemix.plugins.names import check_new_name, same_definition
from rifflemix.plugins.outside import Outside

__all__ = [
    "Outside",
    "check_new_name",
    "load_plugin",
    "plugin_files",
    "same_definition",
]
