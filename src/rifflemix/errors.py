"""The one kind of error that a caller can cause, and helpers that phrase it in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A bad argument, file or setting: one sentence that says what, expected, got and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class RunFailed(InputError):
    """A run that started well and came to nothing; the command line exits with code 1."""


class InputWarning(UserWarning):
    """What a user should know of files, data or packages of his that work only in part.

    The command line prints it as one sentence.
    """


def bad_argument(name: str, expected: str, got: object, hint: str = "") -> InputError:
    """The error for argument `name`; `hint` says what to do about it."""
    sentence = f"{name}: expected {expected}, got {got}"
    return InputError(f"{sentence}; {hint}" if hint else sentence)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is in no list, with the nearest known names."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    options = list(choices)
    if not isinstance(value, str) or value not in options:
        near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.5)
        raise bad_argument(
            name,
            f"one of {', '.join(options)}",
            repr(value),
            f"did you mean {near[0]}?" if near else "",
        )
