"""Look up mixers by name: classes, cards, options, tables, and `create_mixer`.

This module does not import the mixers. The package adds its mixers, and users register other
mixers. A mixer such as `grouped` can therefore create an inner mixer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from rifflemix.checks import check_bool, shown
from rifflemix.errors import bad_argument, nearest_names, unregistered_name
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import JOIN, MixerCard, combined_card, is_stack, layer_mixer
from rifflemix.plugins import EntryPoints, check_new_name
from rifflemix.text import code, table_lines

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

    Example:
        >>> import rifflemix as rm
        >>> @rm.register_mixer
        ... class LastToken(rm.TokenMixer):
        ...     '''Repeat the last token at all positions.'''
        ...     card = rm.MixerCard(
        ...         name="last", title="Last token", paper="folklore", equations="y_n = x_N",
        ...         complexity="O(N C)", cost_exponent=1.0, padding=False,
        ...     )
        ...     def mix(self, x, key_padding_mask):
        ...         return x[:, -1:].expand_as(x)
        >>> "last" in rm.list_mixers()
        True
    """
    _check_class(cls)
    check_new_name("mixer", cls.card.name, cls, _MIXERS)
    _MIXERS[cls.card.name] = cls
    _ENTRY_POINTS.registered()
    return cls


_ENTRY_POINTS = EntryPoints("mixer", lambda: _MIXERS, register_mixer)


def list_mixers() -> list[str]:
    """List the names of all mixers in the order of the tables.

    Names from entry points are included, but their packages are not imported.

    Returns:
        Names for `create_mixer`.

    Example:
        >>> import rifflemix as rm
        >>> rm.list_mixers()[:4]
        ['softmax', 'csp', 'sliceformer', 'tssa']
    """
    return _ENTRY_POINTS.names()


def usable_mixers() -> list[str]:
    """List the names of all importable mixers; warn about the others.

    Returns:
        Names for `create_mixer`.

    Example:
        >>> import rifflemix as rm
        >>> "csp" in rm.mixers.usable_mixers()
        True
    """
    return _ENTRY_POINTS.usable()


def mixer_class(name: str) -> type[TokenMixer]:
    """Return the class of a registered mixer.

    Args:
        name: name in `list_mixers()`.

    Returns:
        The class, a subclass of `TokenMixer`.

    Raises:
        InputError: the name is unknown. The message suggests the nearest name.

    Example:
        >>> import rifflemix as rm
        >>> rm.mixers.mixer_class("csp").__name__
        'CSP'
    """
    _ENTRY_POINTS.look_up(name)
    if not isinstance(name, str) or name not in _MIXERS:
        raise unregistered_name("mixer", name, list_mixers())
    return _MIXERS[name]


def mixer_classes(name: str) -> list[type[TokenMixer]]:
    """Return the class of a mixer, or the classes of a stack such as "csp+csp+softmax".

    Args:
        name: mixer, or stack such as "csp+csp+softmax".

    Returns:
        One class per entry of the stack.

    Raises:
        InputError: a name is unknown.

    Example:
        >>> import rifflemix as rm
        >>> [cls.__name__ for cls in rm.mixers.mixer_classes("csp+csp+softmax")]
        ['CSP', 'CSP', 'SoftmaxAttention']
    """
    is_several = isinstance(name, str) and is_stack(name)
    return [mixer_class(one) for one in (name.split(JOIN) if is_several else [name])]


def mixer_card(name: str) -> MixerCard:
    """Return the card of a registered mixer, or the combined card of a stack.

    Args:
        name: mixer, or stack such as "csp+softmax".

    Returns:
        The card.

    Raises:
        InputError: the name is unknown.

    Example:
        >>> import rifflemix as rm
        >>> card = rm.mixer_card("tssa")
        >>> card.complexity, card.causal, card.streaming
        ('O(N C)', True, True)
    """
    cards = [cls.card for cls in mixer_classes(name)]
    return combined_card(cards) if len(cards) > 1 else cards[0]


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
        name: name from `list_mixers()`, or a stack such as "csp+csp+softmax". Layers of a stack
            take its mixers in turn, by `layer_index`.
        dim: channels C.
        num_heads: heads H, a divisor of `dim`.
        max_length: maximum number of tokens; None if the mixer does not need a maximum.
        layer_index: 0-based position of the layer in its stack.
        num_layers: number of layers in the stack.
        causal: output n depends on tokens 0..n only.
        dropout: probability in [0, 1) of dropping a mixing weight.
        options: options of this mixer (see its class). Options of a stack have names such as
            "csp.num_groups".

    Returns:
        A module that maps (B, N, C) to (B, N, C).

    Raises:
        InputError: the name or an option is unknown, or a value is out of range.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("tssa", 64, num_heads=4)
        >>> padding = torch.arange(100) >= torch.tensor([[100], [80]])
        >>> mixer(torch.randn(2, 100, 64), key_padding_mask=padding).shape
        torch.Size([2, 100, 64])
    """
    if isinstance(name, str):
        name, own = layer_mixer(name, options, layer_index, "options")
        options = dict(own or {})
    cls = mixer_class(name)
    options = _checked_options(cls, options, causal)
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
    """Return the names and defaults of the options of a mixer or a stack.

    Args:
        name: mixer, or stack such as "csp+softmax".

    Returns:
        Option -> default value.

    Raises:
        InputError: a name is unknown.

    Example:
        >>> import rifflemix as rm
        >>> rm.mixers.mixer_options("fnet")
        {'norm': 'backward'}
    """
    if not (isinstance(name, str) and is_stack(name)):
        return _all_options(mixer_class(name))
    return {
        f"{cls.card.name}.{option}": default
        for cls in mixer_classes(name)
        for option, default in _all_options(cls).items()
    }


def _all_options(cls: type[TokenMixer]) -> dict[str, Any]:
    """Collect the options of a class, then further options of its causal class."""
    options = _variant_options(cls)
    if cls.causal_class is not None:
        options = {**options, **_variant_options(cls.causal_class), **options}
    return options


def _variant_options(cls: type[TokenMixer]) -> dict[str, Any]:
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


def _checked_options(
    cls: type[TokenMixer], options: dict[str, Any], causal: bool
) -> dict[str, Any]:
    """Check the names of options, and convert lists from files to tuples."""
    known = _all_options(cls)
    variant = cls.causal_class if causal is True and cls.causal_class is not None else cls
    supported = _variant_options(variant)
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
        if name not in supported and value is not None:
            direction = "without" if variant is cls else "with"
            raise bad_argument(name, f"None {direction} causal=True", shown(value))
    return {
        name: tuple(value) if type(known[name]) is tuple and isinstance(value, list) else value
        for name, value in options.items()
        if name in supported
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
        raise bad_argument(f"card of {name}, name", "another name", repr(ALL))
    for entry, kind in inspect.get_annotations(MixerCard, eval_str=True).items():
        value = getattr(card, entry)
        is_number = isinstance(value, int) and kind is float and not isinstance(value, bool)
        if not (type(value) is kind or is_number):
            raise bad_argument(f"card of {name}, {entry}", f"a {kind.__name__}", repr(value))
    for entry in ("title", "paper", "equations", "complexity"):
        if not getattr(card, entry):
            raise bad_argument(f"card of {name}, {entry}", "a text", "an empty text")
    if not 0 < card.cost_exponent < math.inf:
        raise bad_argument(f"card of {name}, cost_exponent", "a number above 0", card.cost_exponent)
    if card.streaming and not card.causal:
        raise bad_argument(f"card of {name}, streaming", "False if causal is False", True)
    if cls.mix is TokenMixer.mix and cls.forward is TokenMixer.forward:
        raise bad_argument(f"mixer {name}", "a method mix(x, key_padding_mask)", "none")
    try:
        inspect.signature(cls).bind(8, **_SHARED)
    except TypeError as error:
        raise bad_argument(
            f"{name}.__init__",
            f"dim and {', '.join(_SHARED)}",
            error,
            "pass **shared to super().__init__",
        ) from None


_SHARED = {
    name: parameter.default
    for name, parameter in inspect.signature(TokenMixer.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}


_DIM, _HEADS, _LENGTH = 256, 8, 256
_COLUMNS = ("name", "mixer", "paper", "cost", "causal", "streaming", "packed", "parameters")


def mixer_entries() -> list[dict[str, Any]]:
    """List the card and the parameter count of every registered mixer.

    The count is for one layer with the settings in `parameters_at`.
    """
    return [_entry(name) for name in usable_mixers()]


def mixers_markdown() -> str:
    """Format the table of mixers as Markdown."""
    rows = [
        (
            code(entry["name"]),
            entry["title"],
            entry["paper"],
            entry["complexity"],
            "yes" if entry["causal"] else "",
            "yes" if entry["streaming"] else "",
            "yes" if entry["packed"] else "",
            f"{entry['parameters']:,}",
        )
        for entry in mixer_entries()
    ]
    return "\n".join(table_lines(_COLUMNS, rows, range(7, 8))) + "\n"


def exports_markdown() -> str:
    """Format a Markdown table of mixers with limited export, with reasons."""
    rows = [
        (code(name), what, why)
        for name in usable_mixers()
        for card in [mixer_card(name)]
        for what, why in (("one length", card.one_length), ("no ONNX", card.no_onnx))
        if why
    ]
    return "\n".join(table_lines(("mixer", "limit", "reason"), rows)) + "\n"


def _entry(name: str) -> dict[str, Any]:
    mixer = create_mixer(name, _DIM, num_heads=_HEADS, max_length=_LENGTH)
    return asdict(mixer_card(name)) | {
        "parameters": sum(parameter.numel() for parameter in mixer.parameters()),
        "parameters_at": {"dim": _DIM, "num_heads": _HEADS, "max_length": _LENGTH},
    }
