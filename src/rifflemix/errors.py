"""The one kind of error that a caller can cause, and helpers that phrase it in one sentence."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable

from rifflemix.text import terminal_text

_LONGEST = 500  # characters of what came, in a sentence
_MOST_NAMES = 150  # names in one; there are more recipes, and a user's table may have more columns


class InputError(ValueError):
    """A bad argument, file or setting: one sentence that says what, expected, got and what to do.

    The command line prints it without a traceback and exits with code 2. The message is one line
    without control characters, whatever names and texts from outside it quotes.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_one_line(message))


class RunFailed(InputError):
    """A run that started well and came to nothing; the command line exits with code 1."""


class InputWarning(UserWarning):
    """A file, data set or package of the user works only in part.

    The command line prints it as one sentence.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_one_line(message))


def _one_line(message: object) -> str:
    return terminal_text(" ".join(str(message).splitlines()))


_NO_MEMORY = re.compile("out ?of ?memory|can(?:no|')t allocate memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine or a device had no memory left, which torch tells in words alone."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, RuntimeError | OSError) else ""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(told) is not None


def bad_argument(name: str, expected: str, got: object, hint: str = "") -> InputError:
    """The error for argument `name`; `hint` says what to do about it."""
    sentence = f"{name}: expected {expected}, got {_in_a_line(got)}"
    return InputError(f"{sentence}; {hint}" if hint else sentence)


# What others call the same: torch, timm, transformers, einops-style attention packages.
_OTHER_WORDS = {
    "attention": "softmax",
    "self_attention": "softmax",
    "mha": "softmax",
    "sdpa": "softmax",
    "token_statistics": "tssa",
    "tost": "tssa",
    "d_model": "dim",
    "embed_dim": "dim",
    "hidden_size": "dim",
    "heads": "num_heads",
    "n_heads": "num_heads",
    "nhead": "num_heads",
    "num_attention_heads": "num_heads",
    "depth": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "layer_idx": "layer_index",
    "max_seq_len": "max_length",
    "seq_len": "max_length",
    "is_causal": "causal",
    "attn_drop": "dropout",
    "dropout_p": "dropout",
}


def same_name(name: object, known: Iterable[str]) -> str | None:
    """The known name that differs in capitals or hyphens only, or is what others call the same."""
    plain = {_plain(other): other for other in known}
    word = _plain(name)
    return plain.get(word) or plain.get(_OTHER_WORDS.get(word, word))


def nearest_names(name: object, known: Iterable[str]) -> list[str]:
    """At most three of the known names that may be meant, the likeliest first."""
    plain = {_plain(other): other for other in sorted(known)}
    same = same_name(name, plain.values())
    if same is not None:
        return [same]
    return [plain[near] for near in difflib.get_close_matches(_plain(name), plain, cutoff=0.5)]


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")


def _in_a_line(value: object) -> str:
    """What came, which may be a tensor over many lines, as part of a sentence."""
    try:
        text = " ".join(str(value).split())
    except ValueError:  # Python writes no number of so many digits
        text = "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def unknown_name(
    kind: str, name: object, known: Iterable[str], listed: str = "", more: str = ""
) -> InputError:
    """The error for a name that is in no list, with the nearest names, or all of a few.

    `listed` is the command that lists them, for those that are too many for a sentence; `more` is
    another sentence.
    """
    names = sorted(known)
    near = [_as_shown(n) for n in nearest_names(name, names)]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif len(names) > _MOST_NAMES:
        hint = f"{len(names):,} are known, such as {names[0]} and {names[-1]}"
        hint += f": `{listed}`" if listed else ""
    else:
        hint = f"known: {', '.join(map(_as_shown, names))}"
    end = " " if hint.endswith("?") else ". "
    return InputError(f"unknown {kind} {_in_a_line(repr(name))}; {hint}{more and end + more}")


def unregistered_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """`unknown_name` of what people register themselves, also before they load what was saved."""
    more = "One of your own is registered first: import its module, or pass --plugin FILE.py"
    return unknown_name(kind, name, known, more=more)


def _as_shown(name: str) -> str:
    """A name as it is, in quotes where it could not be seen."""
    return name if name and name == name.strip() else repr(name)


def require_packages(what: str, extra: str, *names: str) -> None:
    """Raise unless the packages of an extra that `what` needs are installed.

    Args:
        what: what they are needed for; begins the sentence.
        extra: of this package, that brings them.
        names: as they are imported.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        *others, last = missing
        listed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        raise InputError(f"{what} needs {listed} not installed; pip install 'rifflemix[{extra}]'")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    options = list(choices)
    if not isinstance(value, str) or value not in options:
        near = nearest_names(value, options)
        raise bad_argument(
            name,
            f"one of {', '.join(options)}",
            repr(value),
            f"did you mean {near[0]}?" if near else "",
        )
