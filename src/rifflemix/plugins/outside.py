"""What packages name in their entry points `rifflemix.mixers`, `.tasks` and `.models`.

The names are listed without an import. A package is imported when one of its names is first used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rifflemix.errors import InputError, InputWarning
from rifflemix.plugins.loading import first_line, load_inherited, note_registration
from rifflemix.plugins.names import defined_in


class Outside:
    """The entry points of one kind, and what a registry needs of them.

    Args:
        kind: "mixer", "task" or "model".
        known: name -> what is registered; the registry's own.
        register: registers what an entry point names.
    """

    def __init__(
        self, kind: str, known: Callable[[], Mapping[str, Any]], register: Callable[[Any], Any]
    ) -> None:
        self.kind = kind
        self._known = known
        self._register = register
        self._points: dict[str, EntryPoint] | None = None
        self._broken: dict[str, str] = {}

    def names(self) -> list[str]:
        """All that can be asked for: what is registered, then what only an entry point names."""
        load_inherited()
        known = list(self._known())
        points = self._entry_points()
        return known + [n for n in points if n not in known and n not in self._broken]

    def usable(self) -> list[str]:
        """Those of `names` that can be imported; the others are warned of, once."""
        for name in self.names():
            try:
                self.look_up(name)
            except InputError as error:
                warnings.warn(f"{error}; it is left out", InputWarning, stacklevel=3)
        return self.names()

    def look_up(self, name: Any) -> None:
        """Register what has this name, where an entry point or a parent's file does.

        Raises:
            InputError: its package cannot be imported, or names something else.
        """
        known = self._known()
        if not isinstance(name, str) or name in known:
            return
        load_inherited()
        point = self._entry_points().get(name)
        if name in known or point is None:
            return
        if name not in self._broken:
            reason = self._load(point)
            if reason is None:
                return
            self._broken[name] = reason
        raise InputError(
            f"{self.kind} {name!r} of {_package(point)} cannot be used: {self._broken[name]}"
        )

    def registered(self) -> None:
        """Take note of a registration."""
        note_registration()

    def forget(self) -> None:
        """Look for entry points again when the next name is asked for."""
        self._points = None
        self._broken.clear()

    def _load(self, point: EntryPoint) -> str | None:
        """Why an entry point cannot be used; None where it can."""
        try:
            found = point.load()
            # The import alone registers what has a decorator.
            if point.name not in self._known():
                self._register(found)
        except Exception as error:  # a package may hold any code
            text = first_line(error)
            return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
        if point.name not in self._known():
            return f"{point.value} registers another name"
        return None

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._points is None:
            self._points = {}
            for point in entry_points(group=f"rifflemix.{self.kind}s"):
                owner = self._owner(point)
                if owner:
                    warnings.warn(
                        f"{self.kind} {point.name!r} of {_package(point)} is left out: {owner} "
                        "has the name",
                        InputWarning,
                        stacklevel=2,
                    )
                else:
                    self._points[point.name] = point
        return self._points

    def _owner(self, point: EntryPoint) -> str:
        """Who has the name of an entry point already; empty where it is free, or its own."""
        if self._points and point.name in self._points:
            return _package(self._points[point.name])
        if point.name not in self._known():
            return ""
        module = defined_in(self._known()[point.name])
        is_own = module.partition(".")[0] == point.module.partition(".")[0]
        return "" if is_own else module


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"package {point.dist.name}"
