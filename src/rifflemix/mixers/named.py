"""Look up mixers by name: classes, cards, options, and `create_mixer`.

This module does not import the mixers. The package adds the mixers of `rifflemix.mixers.registry`,
and users register other mixers. A mixer such as `grouped` can therefore create an inner mixer here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any, TypeVar

from rifflemix.checks import check_bool
from rifflemix.errors import bad_argument, nearest_names, unregistered_name
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.plugins import Outside, check_new_name

_Class = TypeVar("_Class", bound=type[TokenMixer])

ALL = "all"
"""Name that selects every mixer in a comparison."""

_MIXERS: dict[str, type[TokenMixer]] = {}


def add_mixers(mixers: Iterable[type[TokenMixer]]) -> None:
    """Add mixer classes under the names on their cards, without checks."""
    _MIXERS.update({mixer.card.name: mixer for mixer in mixers})


def register_mixer(cls: _Class) -> _Class:
    """Register a mixer class under the name on its card.

    Use this function as a decorator. Lists, comparisons, benchmarks and models with `mixer=` then
    accept the new mixer.

    Args:
        cls: subclass of `TokenMixer` with a `card`. Use `rifflemix.testing.check_mixer` to check
            the outputs of the mixer.

    Returns:
        The class itself.

    Raises:
        InputError: `cls` is not a subclass of `TokenMixer`, its card is incomplete, or its name
            is already registered.
    """
    _check_class(cls)
    check_new_name("mixer", cls.card.name, cls, _MIXERS)
    _MIXERS[cls.card.name] = cls
    _OUTSIDE.registered()
    return cls


_OUTSIDE = Outside("mixer", lambda: _MIXERS, register_mixer)


def list_mixers() -> list[str]:
    """List the names of all mixers in the order of the tables.

    Names from entry points are included, but their packages are not imported.
    """
    return _OUTSIDE.names()


def usable_mixers() -> list[str]:
    """List the names of all importable mixers; warn about the others."""
    return _OUTSIDE.usable()


def mixer_class(name: str) -> type[TokenMixer]:
    """Return the class of a registered mixer.

    Raises:
        InputError: the name is unknown. The message suggests the nearest name.
    """
    _OUTSIDE.look_up(name)
    if not isinstance(name, str) or name not in _MIXERS:
        raise unregistered_name("mixer", name, list_mixers())
    return _MIXERS[name]


def mixer_card(name: str) -> MixerCard:
    """Return the card of a registered mixer."""
    return mixer_class(name).card


def create_mixer(
    name: str,
    dim: int,
    *,
    num_heads: int = 1,
    max_length: int | None = None,
    layer_index: int = 0,
    num_layers: int = 1,
    causal: bool = False,
    dropout: float = 0.0,
    **options: Any,
) -> TokenMixer:
    """Build a mixer by name.

    Args:
        name: name from `list_mixers()`.
        dim: channels C.
        num_heads: heads H, a divisor of `dim`.
        max_length: maximum number of tokens; None if the mixer does not need a maximum.
        layer_index: 0-based position of the layer in its stack.
        num_layers: number of layers in the stack.
        causal: output n depends on tokens 0..n only.
        dropout: probability in [0, 1) of dropping a mixing weight.
        options: options of this mixer (see its class).

    Returns:
        A module that maps (B, N, C) to (B, N, C).

    Raises:
        InputError: the name or an option is unknown, or a value is out of range.
    """
    cls = mixer_class(name)
    options = _checked_options(cls, options)
    return cls(
        dim,
        num_heads=num_heads,
        max_length=max_length,
        layer_index=layer_index,
        num_layers=num_layers,
        causal=causal,
        dropout=dropout,
        **options,
    )


def mixer_options(name: str) -> dict[str, Any]:
    """Return the names and defaults of the options of a mixer."""
    return _own_options(mixer_class(name))


def _own_options(cls: type[TokenMixer]) -> dict[str, Any]:
    """Collect the options of a class and its bases below `TokenMixer`."""
    shared = _shared_arguments()
    options: dict[str, Any] = {}
    for base in cls.__mro__[: cls.__mro__.index(TokenMixer)]:
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name not in shared and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    options.setdefault(name, parameter.default)
    return {name: value for name, value in options.items() if name not in cls.fixed_options}


def _shared_arguments() -> list[str]:
    """List `self` and the arguments of every mixer."""
    return list(inspect.signature(TokenMixer.__init__).parameters)


def _checked_options(cls: type[TokenMixer], options: dict[str, Any]) -> dict[str, Any]:
    """Check the names of options, and convert lists from files to tuples."""
    known = _own_options(cls)
    for name, value in options.items():
        if name not in known:
            near = nearest_names(name, [*_shared_arguments(), *known])
            raise bad_argument(
                f"options of {cls.card.name}",
                ", ".join(known) if known else "no options",
                repr(name),
                f"did you mean {near[0]}?" if near else "",
            )
        if isinstance(known[name], bool):
            check_bool(name, value)
    return {
        name: tuple(value) if type(known[name]) is tuple and isinstance(value, list) else value
        for name, value in options.items()
    }


def _check_class(cls: Any) -> None:
    """Raise unless `cls` is a mixer class with a complete card."""
    if not isinstance(cls, type) or not issubclass(cls, TokenMixer):
        got = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise bad_argument("mixer", "a subclass of TokenMixer", got)
    name, card = cls.__name__, getattr(cls, "card", None)
    if not isinstance(card, MixerCard):
        raise bad_argument(f"card of {name}", "a MixerCard", repr(card))
    if card.name == ALL:
        raise bad_argument(f"card of {name}, name", "the name of one mixer", repr(ALL))
    for entry, kind in inspect.get_annotations(MixerCard, eval_str=True).items():
        value = getattr(card, entry)
        is_number = isinstance(value, int) and kind is float and not isinstance(value, bool)
        if not (type(value) is kind or is_number):
            raise bad_argument(f"card of {name}, {entry}", f"a {kind.__name__}", repr(value))
    for entry in ("title", "paper", "equations", "complexity"):
        if not getattr(card, entry):
            raise bad_argument(f"card of {name}, {entry}", "a text", "an empty one")
    if not 0 < card.cost_exponent < math.inf:
        raise bad_argument(f"card of {name}, cost_exponent", "a number above 0", card.cost_exponent)
    if card.streaming and not card.causal:
        raise bad_argument(f"card of {name}, streaming", "False where causal is False", True)
    if cls.mix is TokenMixer.mix and cls.forward is TokenMixer.forward:
        raise bad_argument(f"mixer {name}", "a method mix(x, key_padding_mask)", "none")
    try:
        inspect.signature(cls).bind(8, **_SHARED)
    except TypeError as error:
        raise bad_argument(
            f"{name}.__init__", f"dim and {', '.join(_SHARED)}", error, "pass **shared on to super"
        ) from None


_SHARED = {
    name: parameter.default
    for name, parameter in inspect.signature(TokenMixer.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}
