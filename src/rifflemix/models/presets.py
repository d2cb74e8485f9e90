"""Named models: the cards and presets, and building one by its name.

The families put their presets in here (`rifflemix.models.registry` asks them to), so that a model
can be built, saved and loaded without a module that knows all families.
"""

from __future__ import annotations

import copy
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rifflemix.errors import InputError, bad_argument, unregistered_name
from rifflemix.plugins import Outside, check_new_name

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
        printed_macs: the multiply-accumulates for one sample, likewise printed there.
    """

    name: str
    title: str
    paper: str
    inputs: str
    printed: str = ""
    printed_in: str = ""
    note: str = ""
    printed_macs: str = ""


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


_Build = TypeVar("_Build", bound=Callable[..., Any])


def register_model(card: ModelCard, **settings: Any) -> Callable[[_Build], _Build]:
    """Make a model of your own known by its card's name; a decorator with arguments.

    Every list and command then takes it like the others; it is a backbone of comparisons where it
    has `mixer` and the settings that they choose.

    Args:
        card: what the model is.
        settings: of this name, where they are not the defaults of what builds it.

    Returns:
        The decorator of a `Model` class, or of a function that returns a `Model`. It can be used
        again with another card, for another size.

    Raises:
        InputError: a card that is not whole, a name that is taken, or an unknown setting.
    """
    _check_model_card(card)

    def register(build: _Build) -> _Build:
        if not callable(build):
            raise bad_argument(f"model {card.name}", "a class or function", repr(build))
        _register_preset(Preset(card, build, settings))
        return build

    return register


def _register_preset(preset: Any) -> None:
    if not isinstance(preset, Preset):
        raise bad_argument("model", "a Preset, or what register_model decorates", repr(preset))
    name = preset.card.name
    _check_model_card(preset.card)
    known = inspect.signature(preset.build).parameters
    for setting in preset.settings:
        if setting not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known) or "none", repr(setting))
    builds = {name: preset.build for name, preset in _PRESETS.items()}
    check_new_name("model", name, preset.build, builds)
    _PRESETS[name] = preset
    _OUTSIDE.registered()


def _check_model_card(card: Any) -> None:
    if not isinstance(card, ModelCard):
        raise bad_argument("card of the model", "a ModelCard", repr(card))
    for entry in ("title", "paper", "inputs"):
        value = getattr(card, entry)
        if not isinstance(value, str) or not value:
            raise bad_argument(f"card of model {card.name}, {entry}", "a text", repr(value))
    for entry in ("printed", "printed_macs"):
        count = getattr(card, entry)
        if count and not _PRINTED.fullmatch(count):
            raise bad_argument(
                f"card of model {card.name}, {entry}", "a count as '9.52 M' or '1148042'", count
            )


_MOST_LAYERS = 10_000
# What torch says of sizes that it has no memory or no numbers for.
_NO_SIZE = re.compile("allocate memory|[Oo]verflow|too large to convert")
_PRINTED = re.compile(r"\d+(\.\d+)? M|\d+")
_OUTSIDE = Outside("model", lambda: _PRESETS, _register_preset)


def preset_names() -> list[str]:
    """All names in the order of the tables; other packages are not imported."""
    return _OUTSIDE.names()


def usable_presets() -> list[str]:
    """As `preset_names`, without those whose packages cannot be imported, with a warning each."""
    return _OUTSIDE.usable()


def find_preset(name: str) -> Preset:
    """The preset of a name; an unknown name suggests the nearest."""
    _OUTSIDE.look_up(name)
    if not isinstance(name, str) or name not in _PRESETS:
        raise unregistered_name("model", name, preset_names())
    return _PRESETS[name]


def _check_layers(name: str, settings: Mapping[str, Any]) -> None:
    """Raise where building a model would take hours, and all memory, before torch says a word."""
    layers = settings.get("num_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise bad_argument(f"num_layers of {name}", f"at most {_MOST_LAYERS:,}", layers)


def build_model(name: str, settings: Mapping[str, Any]) -> Model:
    """Build a model by name from all of its settings, those of its preset included.

    Raises:
        InputError: unknown name or setting, or a value out of range.
    """
    preset = find_preset(name)
    known = inspect.signature(preset.build).parameters
    for setting in settings:
        if setting not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known), reprlib.repr(setting))
    _check_layers(name, settings)
    try:
        model = preset.build(**settings)
    except InputError:
        raise
    except (RuntimeError, MemoryError, OverflowError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if not _NO_SIZE.search(reason) and not isinstance(error, MemoryError):
            raise
        raise InputError(f"{name}: no model of this size can be made here: {reason}") from error
    if not hasattr(model, "save_pretrained"):
        raise bad_argument(f"what builds {name}", "a rifflemix.models.Model", type(model).__name__)
    # A copy: what the caller, or the preset, does with its dicts later is no setting of the model.
    model.name, model.settings = name, copy.deepcopy(dict(settings))
    return model
