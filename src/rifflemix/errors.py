"""`InputError`, the error for wrong arguments, files and settings, and helpers to build it."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable

from rifflemix.text import terminal_text

_LONGEST = 500  # characters of a value that a message quotes
_MOST_NAMES = 150  # names that a message lists; recipes and table columns can be more


EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
"""Exit codes of the command line."""


class InputError(ValueError):
    """A bad argument, file or setting.

    The message is one line: the name, the expected value, the given value and what to do. Line
    breaks and control characters in quoted names and texts are replaced. The command line prints
    the message without a traceback and exits with code 2.

    Example:
        >>> import rifflemix as rm
        >>> try:
        ...     rm.create_mixer("tssa", 64, num_heads=5)
        ... except rm.InputError as error:
        ...     print(error)
        num_heads: expected a divisor of dim = 64, got 5
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_one_line(message))


class RunFailed(InputError):
    """A run that started and then failed. The command line exits with code 1."""


class InputWarning(UserWarning):
    """A user's file, data set or package works only in part.

    The message is one line. The command line prints only this line.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_one_line(message))


def _one_line(message: object) -> str:
    return terminal_text(" ".join(str(message).splitlines()))


_NO_MEMORY = re.compile("out ?of ?memory|can(?:no|')t allocate memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory.

    Torch may raise a plain RuntimeError, so the check also reads the message.
    """
    told = f"{type(error).__name__}: {error}" if isinstance(error, RuntimeError | OSError) else ""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(told) is not None


def bad_argument(name: str, expected: str, got: object, hint: str = "") -> InputError:
    """Return the error for argument `name`; `hint` advises the user."""
    sentence = f"{name}: expected {expected}, got {_in_a_line(got)}"
    return InputError(f"{sentence}; {hint}" if hint else sentence)


# Aliases in torch, timm, transformers and einops-style attention packages.
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
    """Find the known name equal up to case, hyphens or alias."""
    plain = {_plain(other): other for other in known}
    word = _plain(name)
    return plain.get(word) or plain.get(_OTHER_WORDS.get(word, word))


def nearest_names(name: object, known: Iterable[str]) -> list[str]:
    """Return at most three similar known names, the most likely first."""
    plain = {_plain(other): other for other in sorted(known)}
    same = same_name(name, plain.values())
    if same is not None:
        return [same]
    return [plain[near] for near in difflib.get_close_matches(_plain(name), plain, cutoff=0.5)]


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")


def _in_a_line(value: object) -> str:
    """Shorten a value to one line, for instance a printed tensor."""
    try:
        text = " ".join(str(value).split())
    except ValueError:  # Python refuses to print very long integers
        text = "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def unknown_name(
    kind: str, name: object, known: Iterable[str], listed: str = "", more: str = ""
) -> InputError:
    """Return the error for an unknown name, with the nearest known names.

    If no known name is near, the message lists all known names, or two of them if there are too
    many. `listed` is the command that lists them all. `more` is appended as a last sentence.
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
    """Return `unknown_name` with advice to register user-defined names."""
    more = "One of your own is registered first: import its module, or pass --plugin FILE.py"
    return unknown_name(kind, name, known, more=more)


def _as_shown(name: str) -> str:
    """Return a name, in quotes if it is empty or has outer spaces."""
    return name if name and name == name.strip() else repr(name)


def require_packages(what: str, extra: str, *names: str) -> None:
    """Raise InputError unless all packages that `what` needs are installed.

    Args:
        what: feature that needs the packages; the message starts with it.
        extra: extra of rifflemix that installs the packages.
        names: import names of the packages.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        *others, last = missing
        listed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        raise InputError(f"{what} needs {listed} not installed; pip install 'rifflemix[{extra}]'")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    options = list(choices)
    if not isinstance(value, str) or value not in options:
        near = nearest_names(value, options)
        raise bad_argument(
            name,
            f"one of {', '.join(options)}",
            repr(value),
            f"did you mean {near[0]}?" if near else "",
        )
