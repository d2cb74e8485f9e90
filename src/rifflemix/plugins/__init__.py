"""Third-party mixers, tasks, models, analyses and recipes, from files and entry points."""

from rifflemix.plugins.code import (
    check_new_name,
    code_hash,
    is_outside,
    outside_classes,
    same_definition,
)
from rifflemix.plugins.loading import (
    GROUPS,
    EntryPoints,
    file_of,
    first_line,
    in_a_line,
    load_plugin,
    place_in,
    plugin_files,
    plugin_paths,
    plugin_place,
)

__all__ = [
    "GROUPS",
    "EntryPoints",
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
    "plugin_paths",
    "plugin_place",
    "same_definition",
]
