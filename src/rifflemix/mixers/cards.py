"""The card that describes a mixer, and stacks of mixers such as "csp+csp+softmax"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, cast

from rifflemix.checks import shown
from rifflemix.errors import bad_argument

JOIN = "+"
Stack = str | Sequence[Any]
"""Name of a mixer, names joined by "+", or a list of names and (name, options) pairs."""

_TEXTS = ("layout_over_length", "by_position", "thread_sums", "training_noise", "one_length",
          "no_onnx")  # fmt: skip
_IF_ALL = ("causal", "padding", "packed", "streaming", "permutation_equivariant",
           "permutation_invariant")  # fmt: skip


@dataclass(frozen=True)
class MixerCard:
    """The description of a mixer, for the registry, tests, benchmarks and tables.

    The text fields from `layout_over_length` on are empty if the limitation does not apply.

    Attributes:
        name: registry name.
        title: common name of the mixer.
        paper: publication that introduced the mixer.
        equations: equations or sections that the mixer implements.
        complexity: cost as printed in tables, in tokens N and channels C.
        cost_exponent: exponent of N in the cost of the mixing itself: 1.0 for O(N) and
            O(N log N), 2.0 for O(N^2).
        causal: the mixer accepts `causal=True`.
        padding: the mixer accepts `key_padding_mask`.
        packed: the mixer accepts `cu_seqlens`, several sequences in one packed batch.
        streaming: the mixer has `init_state` and `step` (when built with `causal=True`).
        permutation_equivariant: permuting the tokens permutes the outputs.
        permutation_invariant: permuting the tokens does not change any output.
        layout_over_length: reason why outputs may depend on the padded length N even if
            `max_length` is set.
        by_position: how the bidirectional variant depends on positions, padding included. Padding
            before or between tokens then changes the outputs of the tokens.
        needs_max_length: the mixer cannot be built without `max_length`.
        thread_sums: sums in torch that are split by the number of CPU threads, by default or with
            some options. The last bits of outputs or gradients then depend on that number. Not
            included: matrix products of torch. They can split in every mixer if sizes are odd or
            the channels are few, and on some CPUs in the gradients of weights.
        training_noise: random draws in training other than dropout, by default or with some
            options.
        one_length: reason why a program from torch.export supports only one sequence length.
        no_onnx: reason why a program from torch.export does not run in other runtimes as ONNX.

    Example:
        >>> import rifflemix as rm
        >>> [name for name in rm.list_mixers() if rm.mixer_card(name).permutation_invariant]
        ['sliceformer', 'average']
    """

    name: str
    title: str
    paper: str
    equations: str
    complexity: str
    cost_exponent: float
    causal: bool = False
    padding: bool = True
    packed: bool = False
    streaming: bool = False
    permutation_equivariant: bool = False
    permutation_invariant: bool = False
    layout_over_length: str = ""
    by_position: str = ""
    needs_max_length: bool = False
    thread_sums: str = ""
    training_noise: str = ""
    one_length: str = ""
    no_onnx: str = ""


def is_stack(mixer: object) -> bool:
    """Check whether a mixer of a model is a stack of several mixers."""
    return JOIN in mixer if isinstance(mixer, str) else isinstance(mixer, list | tuple)


def stack_name(mixer: Stack) -> str:
    """Return the names of a stack, joined by "+".

    Args:
        mixer: name, or list of names and (name, options) pairs.

    Returns:
        A name such as "csp+softmax".

    Raises:
        InputError: an entry is no name and no pair of a name and options.

    Example:
        >>> import rifflemix as rm
        >>> rm.mixers.stack_name(["csp", ("local", {"block_size": 32})])
        'csp+local'
    """
    return mixer if isinstance(mixer, str) else JOIN.join(name for name, _ in _entries(mixer))


def layer_mixer(
    mixer: Stack, options: Mapping[str, Any] | None, layer_index: int, setting: str
) -> tuple[str, Mapping[str, Any] | None]:
    """Choose the mixer of a layer; the entries of a stack repeat over the layers.

    Args:
        mixer: a mixer or a stack.
        options: options of the mixer. Options of a stack have the names "MIXER.OPTION".
        layer_index: 0-based position of the layer.
        setting: the name of `options` in error messages.

    Returns:
        Name and options of the mixer.

    Raises:
        InputError: the stack is empty or contains something else, or an option has no mixer.
    """
    if not is_stack(mixer):
        return cast(str, mixer), options
    entries = _entries(mixer.split(JOIN) if isinstance(mixer, str) else mixer)
    name, own = entries[layer_index % len(entries)]
    return name, {**own, **_options_of(name, {n for n, _ in entries}, options or {}, setting)}


def combined_card(cards: Iterable[MixerCard]) -> MixerCard:
    """Describe a stack by the cards of its mixers."""
    cards = list(cards)
    titles = []
    for title, group in groupby(card.title for card in cards):
        count = len(list(group))
        titles.append(title if count == 1 else f"{count} x {title}")

    def joined(entry: str, between: str) -> str:
        return between.join(dict.fromkeys(filter(None, (getattr(c, entry) for c in cards))))

    shared: dict[str, Any] = {entry: all(getattr(c, entry) for c in cards) for entry in _IF_ALL}
    shared |= {entry: joined(entry, "; ") for entry in _TEXTS}
    return replace(
        cards[0],
        name=JOIN.join(card.name for card in cards),
        title=" + ".join(titles),
        paper=joined("paper", "; "),
        equations=joined("equations", "; "),
        complexity=joined("complexity", " + "),
        cost_exponent=max(card.cost_exponent for card in cards),
        needs_max_length=any(card.needs_max_length for card in cards),
        **shared,
    )


def _entries(stack: Sequence[Any]) -> list[tuple[str, Mapping[str, Any]]]:
    expected = "a name, names joined by '+', or a list of names and (name, options) pairs"
    entries = []
    for entry in stack:
        is_pair = isinstance(entry, list | tuple) and len(entry) == 2
        name, options = entry if is_pair else (entry, {})
        if not isinstance(name, str) or not name or not isinstance(options, Mapping):
            raise bad_argument("mixer", expected, shown(stack))
        entries.append((name, options))
    if not entries:
        raise bad_argument("mixer", expected, "an empty list")
    return entries


def _options_of(
    name: str, names: set[str], options: Mapping[str, Any], setting: str
) -> dict[str, Any]:
    """Select the options of one mixer of a stack."""
    chosen = {}
    for key, value in options.items():
        mixer, dot, option = str(key).partition(".")
        if not dot or mixer not in names:
            expected = f"MIXER.OPTION with a mixer of {', '.join(sorted(names))}"
            raise bad_argument(setting, expected, shown(key))
        if mixer == name:
            chosen[option] = value
    return chosen
