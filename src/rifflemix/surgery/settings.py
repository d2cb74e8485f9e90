"""Settings of a mixer in a host model, to rebuild it from a file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rifflemix.errors import bad_argument
from rifflemix.mixers import TokenMixer, create_mixer, list_mixers, mixer_class
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.sliceformer import Sliceformer

_OF_THE_HOST = (
    "dim", "num_heads", "max_length", "layer_index", "num_layers", "causal", "dropout",
)  # fmt: skip
SORTING = (CSP, Sliceformer)
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
        InputError: the name is unknown. The message suggests the most similar name.
    """
    if isinstance(mixer, type) and issubclass(mixer, TokenMixer):
        return mixer
    return mixer_class(mixer)


def name_of(mixer: str | type[TokenMixer]) -> str | type[TokenMixer]:
    """Return the registry name of a mixer, or the class if unregistered."""
    name = class_of(mixer).card.name
    is_registered = name in list_mixers() and mixer_class(name) is class_of(mixer)
    return name if is_registered else mixer


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
    return [
        inspect.signature(vars(base)["__init__"]).parameters
        for base in cls.__mro__
        if "__init__" in vars(base) and issubclass(base, TokenMixer)
    ]
