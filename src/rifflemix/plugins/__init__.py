"""Third-party mixers, tasks and models, from --plugin files and entry points."""

from rifflemix.plugins.code import code_hash, is_outside, outside_classes
from rifflemix.plugins.loading import (
    file_of,
    first_line,
    in_a_line,
    load_plugin,
    place_in,
    plugin_files,
    plugin_place,
)
from rifflemix.plugins.names import check_new_name, same_definition
from rifflemix.plugins.outside import Outside

__all__ = [
    "Outside",
    "check_new_name",
    "code_hash",
    "file_of",
    "first_line",
    "in_a_line",
    "is_outside",
    "load_plugin",
    "outside_classes",
    "place_in",
    "plugin_files",
    "plugin_place",
    "same_definition",
]
