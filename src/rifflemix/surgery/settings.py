"""Settings of a mixer in a host model, to rebuild it from a file, and their label in the state.

Different mixers can have parameters of the same names and shapes. Loading compares labels to reject
weights of another mixer. A label contains small integers as floats. It survives conversion to other
dtypes and moving averages of weights and buffers.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import has_values, values_can_be_read
from rifflemix.errors import bad_argument
from rifflemix.json_values import parse_json
from rifflemix.mixers import TokenMixer, create_mixer, list_mixers, mixer_class
from rifflemix.mixers.cards import is_stack
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.models.pretrained import as_json

_OF_THE_HOST = (
    "dim", "num_heads", "max_length", "layer_index", "num_layers", "causal", "dropout",
)  # fmt: skip
SORTING = (PermutationMixer,)
"""Mixers that move the values of each channel to other tokens."""


@dataclass(frozen=True)
class MixerSettings:
    """Arguments of `create_mixer` for one layer.

    Attributes:
        mixer: registry name, or a subclass of `TokenMixer`.
        dim: see `create_mixer`, also for the other attributes.
    """

    mixer: str | type[TokenMixer]
    dim: int
    num_heads: int
    max_length: int | None
    layer_index: int
    num_layers: int
    causal: bool
    dropout: float
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> TokenMixer:
        """Create the mixer with initial weights.

        Raises:
            InputError: an argument does not suit the mixer.
        """
        for name in self.options:
            if not isinstance(name, str) or name in _OF_THE_HOST:
                raise bad_argument(
                    "mixer_options", "options of the mixer's own", repr(name), "the host sets it"
                )
        shared: dict[str, Any] = {
            "num_heads": self.num_heads,
            "max_length": self.max_length,
            "layer_index": self.layer_index,
            "num_layers": self.num_layers,
            "causal": self.causal,
            "dropout": self.dropout,
        }
        if isinstance(self.mixer, str):
            return create_mixer(self.mixer, self.dim, **shared, **self.options)
        return self.mixer(self.dim, **shared, **self.options)

    def fill_constants(self, mixer: TokenMixer) -> None:
        """Set the non-persistent buffers of a mixer, also on meta."""
        saved = mixer.state_dict().keys()
        names = [name for name, _ in mixer.named_buffers() if name not in saved]
        if not names:
            return
        with torch.random.fork_rng(), torch.device("cpu"):
            fresh = self.build()
        for name in names:
            old, new = mixer.get_buffer(name), fresh.get_buffer(name)
            owner, _, key = name.rpartition(".")
            device = new.device if old.is_meta else old.device
            mixer.get_submodule(owner).register_buffer(
                key, new.to(device, old.dtype), persistent=False
            )


def class_of(mixer: str | type[TokenMixer]) -> type[TokenMixer]:
    """Return the mixer class of a name or class.

    Raises:
        InputError: the name is unknown. The message suggests the most similar name. Or it is a
            stack of mixers.
    """
    if isinstance(mixer, type) and issubclass(mixer, TokenMixer):
        return mixer
    if isinstance(mixer, str) and is_stack(mixer):
        raise bad_argument(
            "mixer", "one mixer", repr(mixer), "use layers= to replace only some of the layers"
        )
    return mixer_class(mixer)


def name_of(mixer: str | type[TokenMixer]) -> str | type[TokenMixer]:
    """Return the registry name of a mixer, or the class if unregistered."""
    cls = class_of(mixer)
    name = cls.card.name
    if name not in list_mixers():
        return mixer
    registered = mixer_class(name)
    return name if cls in (registered, registered.causal_class) else mixer


def takes_option(cls: type[TokenMixer], name: str) -> bool:
    """Return whether the mixer accepts the option `name`."""
    return name not in cls.fixed_options and any(name in found for found in _parameters(cls))


def default_options(cls: type[TokenMixer]) -> dict[str, Any]:
    """Return the default values of a mixer's own options."""
    return {
        name: parameter.default
        for found in reversed(_parameters(cls))
        for name, parameter in found.items()
        if parameter.default is not parameter.empty
        and name not in (*_OF_THE_HOST, *cls.fixed_options)
    }


def _parameters(cls: type[TokenMixer]) -> list[Mapping[str, inspect.Parameter]]:
    """Return the parameters of each `__init__` from the mixer to `TokenMixer`."""
    variants = [cls] if cls.causal_class is None else [cls, cls.causal_class]
    return [
        inspect.signature(vars(base)["__init__"]).parameters
        for variant in variants
        for base in variant.__mro__
        if "__init__" in vars(base) and issubclass(base, TokenMixer)
    ]


LABEL = "mixer_settings"
"""Name of the buffer in `SwappedAttention`."""


def make_label(settings: MixerSettings) -> Tensor:
    """Encode a mixer's settings as hexadecimal digits of JSON text.

    The settings are name, heads, causality and options.
    """
    text = json.dumps(_values(settings), sort_keys=True)
    digits = [int(digit, 16) for digit in text.encode().hex()]
    return torch.tensor(digits, dtype=torch.float32, device="cpu")


def check_label(place: str, label: Tensor, settings: MixerSettings) -> None:
    """Raise unless the label matches the settings of the mixer.

    Args:
        place: name of the swapped attention, for the message.
        label: label from `make_label`. It is ignored if its values cannot be read (meta device,
            traced graphs).
        settings: settings of the mixer in the model.

    Raises:
        InputError: the label is damaged, or belongs to another mixer or other options.
    """
    if not (has_values(label) and values_can_be_read()):
        return
    own = _values(settings)
    try:
        text = "".join(f"{round(digit):x}" for digit in label.tolist())
        found = dict(parse_json(bytes.fromhex(text).decode()))
    except (ValueError, TypeError, OverflowError):  # OverflowError: infinite digits
        found = {"mixer": "a damaged label"}
    for name in ("mixer", *sorted({*own, *found})):
        wanted, got = (values.get(name, "the default") for values in (own, found))
        if wanted != got:
            raise bad_argument(
                f"weights at {place}",
                f"weights of {own['mixer']} with {name} = {wanted!r}",
                f"{name} = {got!r}",
                f"load them into the swap that saved them, or remove {LABEL!r} from the state to "
                "load them on purpose",
            )


def _values(settings: MixerSettings) -> dict[str, Any]:
    """Return the mixer and all settings that change the computed function.

    Options with default values are left out.
    """
    cls = class_of(settings.mixer)
    defaults = default_options(cls)
    changed = {
        name: _plain(value)
        for name, value in settings.options.items()
        if not name.endswith("dropout") and _plain(value) != _plain(defaults.get(name))
    }
    mixer = settings.mixer if isinstance(settings.mixer, str) else cls.__qualname__
    return {**changed, "mixer": mixer, "num_heads": settings.num_heads, "causal": settings.causal}


def _plain(value: Any) -> Any:
    try:
        return as_json(value)
    except ValueError:
        return type(value).__qualname__
