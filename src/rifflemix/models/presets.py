"""Named models: the cards and presets, and building one by its name.

The families put their presets in here (`rifflemix.models.registry` asks them to), so that a model
can be built, saved and loaded without a module that knows all families.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rifflemix.errors import bad_argument, unknown_name

if TYPE_CHECKING:
    from rifflemix.models.base import Model


@dataclass(frozen=True)
class ModelCard:
    """The description of a named model, for `rifflemix list models` and docs/models.md.

    Attributes:
        name: registry name.
        title: one line of what it is.
        paper: where it was published.
        inputs: what `forward` takes: "images", "tokens", "vectors", ...
        printed: the parameter count, as the paper prints it, "9.52 M" or "1148042"; empty where
            it prints none.
        printed_in: the table or section that prints it.
        note: why our count differs from the printed one, or what else a reader should know.
    """

    name: str
    title: str
    paper: str
    inputs: str
    printed: str = ""
    printed_in: str = ""
    note: str = ""


@dataclass(frozen=True)
class Preset:
    """A named model: the class (or function) that builds it, and the settings of this name."""

    card: ModelCard
    build: Callable[..., Model]
    settings: Mapping[str, Any] = field(default_factory=dict)


_PRESETS: dict[str, Preset] = {}


def add_presets(presets: Iterable[Preset]) -> None:
    """Make presets known by their names."""
    _PRESETS.update({preset.card.name: preset for preset in presets})


def preset_names() -> list[str]:
    """All names, in the order in which they were added."""
    return list(_PRESETS)


def find_preset(name: str) -> Preset:
    """The preset of a name; an unknown name suggests the nearest."""
    if not isinstance(name, str) or name not in _PRESETS:
        raise unknown_name("model", name, _PRESETS)
    return _PRESETS[name]


def build_model(name: str, settings: Mapping[str, Any]) -> Model:
    """Build a model by name from all of its settings, those of its preset included.

    Raises:
        InputError: unknown name or setting, or a value out of range.
    """
    preset = find_preset(name)
    known = inspect.signature(preset.build).parameters
    for setting in settings:
        if setting not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known), repr(setting))
    model = preset.build(**settings)
    # A copy: what the caller, or the preset, does with its dicts later is no setting of the model.
    model.name, model.settings = name, copy.deepcopy(dict(settings))
    return model
