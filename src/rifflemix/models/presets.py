"""Named models: cards, presets, and building a model by its name.

Each family adds its presets here when `rifflemix.models.registry` is imported. Building, saving and
loading a model therefore need no module that imports all families.
"""

from __future__ import annotations

import copy
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from rifflemix.errors import InputError, bad_argument, unregistered_name
from rifflemix.plugins import EntryPoints, check_new_name


class NamedModel(nn.Module):
    """Module with the name and the settings from which `build_model` can build it again."""

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.settings: dict[str, Any] = {}


@dataclass(frozen=True)
class ModelCard:
    """The description of a named model, for `rifflemix list models` and docs/models.md.

    Attributes:
        name: registry name.
        title: a one-line description.
        paper: the publication.
        inputs: the kind of input of `forward`: "images", "tokens", "vectors", ...
        printed: the parameter count as the paper reports it, "9.52 M" or "1148042"; empty if the
            paper reports no count.
        printed_in: the table or section with the reported count.
        note: the reason for a difference between our count and the reported count, or other
            remarks.
        printed_macs: the reported multiply-accumulates for one sample, from the same place.

    Example:
        >>> import rifflemix as rm
        >>> card = rm.models.ModelCard("mean", "Mean vector", paper="folklore", inputs="vectors")
        >>> card.name, card.inputs
        ('mean', 'vectors')
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
    """A named model: its card, the class or function that builds it, and the settings."""

    card: ModelCard
    build: Callable[..., NamedModel]
    settings: Mapping[str, Any] = field(default_factory=dict)


_PRESETS: dict[str, Preset] = {}


def add_presets(presets: Iterable[Preset]) -> None:
    """Register presets under the names on their cards."""
    _PRESETS.update({preset.card.name: preset for preset in presets})


_Build = TypeVar("_Build", bound=Callable[..., Any])
_Model = TypeVar("_Model", bound=NamedModel)


def register_model(card: ModelCard, **settings: Any) -> Callable[[_Build], _Build]:
    """Register a user-defined model under the name on its card.

    `register_model` is a decorator with arguments. All lists and commands then include the model.
    It can serve as a backbone of comparisons if it has `mixer` and the other settings that
    comparisons choose.

    Args:
        card: the description of the model.
        settings: values that differ from the defaults of the decorated class or function.

    Returns:
        A decorator for a `Model` class, or for a function that returns a `Model`. Several
        decorators with different cards can register several sizes of one class.

    Raises:
        InputError: the card is incomplete, the name is taken, or a setting is unknown.

    Example:
        >>> import torch, rifflemix as rm
        >>> card = rm.models.ModelCard("mean", "Mean vector", paper="folklore", inputs="vectors")
        >>> @rm.register_model(card, num_classes=3)
        ... class Mean(rm.models.Model):
        ...     def __init__(self, dim: int = 16, num_classes: int = 2) -> None:
        ...         super().__init__()
        ...         self.head = torch.nn.Linear(dim, num_classes)
        ...     def forward(self, x):
        ...         return self.head(x.mean(1))
        >>> rm.create_model("mean")(torch.randn(2, 10, 16)).shape
        torch.Size([2, 3])
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
    _ENTRY_POINTS.registered()


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
# Messages of torch for sizes that do not fit into memory or into its integers.
_NO_SIZE = re.compile("allocate memory|[Oo]verflow|too large to convert")
_PRINTED = re.compile(r"\d+(\.\d+)? M|\d+")
_ENTRY_POINTS = EntryPoints("model", lambda: _PRESETS, _register_preset)


def preset_names() -> list[str]:
    """List all names in table order, without importing third-party packages."""
    return _ENTRY_POINTS.names()


def usable_presets() -> list[str]:
    """List the models that can be imported; warn about the others."""
    return _ENTRY_POINTS.usable()


def find_preset(name: str) -> Preset:
    """Return the preset of a name.

    Raises:
        InputError: the name is unknown; the message suggests a similar name.
    """
    _ENTRY_POINTS.look_up(name)
    if not isinstance(name, str) or name not in _PRESETS:
        raise unregistered_name("model", name, preset_names())
    return _PRESETS[name]


def build_model(name: str, settings: Mapping[str, Any], kind: type[_Model]) -> _Model:
    """Build a model of class `kind` by name from all of its settings.

    `settings` must include the settings of the preset.

    Raises:
        InputError: the name or a setting is unknown, a value is out of range, or the model is not
            a `kind`.
    """
    preset = find_preset(name)
    known = inspect.signature(preset.build).parameters
    for setting in settings:
        if setting not in known:
            raise bad_argument(f"settings of {name}", ", ".join(known), reprlib.repr(setting))
    layers = settings.get("num_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:  # building the model would take hours
        raise bad_argument(f"num_layers of {name}", f"at most {_MOST_LAYERS:,}", layers)
    try:
        model = preset.build(**settings)
    except InputError:
        raise
    except (RuntimeError, MemoryError, OverflowError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if not _NO_SIZE.search(reason) and not isinstance(error, MemoryError):
            raise
        raise InputError(f"{name}: no model of this size can be made here: {reason}") from error
    if not isinstance(model, kind):
        raise bad_argument(
            f"model {name}", f"a rifflemix.models.{kind.__name__}", type(model).__name__
        )
    # A copy, because the caller may modify its dicts later.
    model.name, model.settings = name, copy.deepcopy(dict(settings))
    return model
