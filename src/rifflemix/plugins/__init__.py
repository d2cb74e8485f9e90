"""Mixers, tasks and models of other people: files of theirs, and packages that name them."""

from rifflemix.plugins.code import code_hash, is_outside, outside_classes
from rifflemix.plugins.loading import first_line, is_of_a_file, load_plugin, plugin_files
from rifflemix.plugins.names import check_new_name, same_definition
from rifflemix.plugins.outside import Outside

__all__ = [
    "Outside",
    "check_new_name",
    "code_hash",
    "first_line",
    "is_of_a_file",
    "is_outside",
    "load_plugin",
    "outside_classes",
    "plugin_files",
    "same_definition",
]
