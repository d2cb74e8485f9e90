"""Entry points of third-party packages: `rifflemix.mixers`, `.tasks` and `.models`.

Listing names does not import a package. The first use of a name imports its package.
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
    """The entry points of one kind, for its registry.

    Args:
        kind: "mixer", "task" or "model".
        known: returns the registered definitions by name.
        register: adds the definition of an entry point to the registry.
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
        """Return the registered names, then the other names of entry points."""
        load_inherited()
        known = list(self._known())
        points = self._entry_points()
        return known + [n for n in points if n not in known and n not in self._broken]

    def usable(self) -> list[str]:
        """Return the importable names; warn once about each other name."""
        for name in self.names():
            try:
                self.look_up(name)
            except InputError as error:
                warnings.warn(f"{error}; it is left out", InputWarning, stacklevel=3)
        return self.names()

    def look_up(self, name: Any) -> None:
        """Register `name` from a parent's plugin file or an entry point.

        Unknown names are ignored.

        Raises:
            InputError: the package cannot be imported, or it registers another name.
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
        """Count a registration, see `note_registration`."""
        note_registration()

    def forget(self) -> None:
        """Clear the cached entry points, so that the next request searches again."""
        self._points = None
        self._broken.clear()

    def _load(self, point: EntryPoint) -> str | None:
        """Load and register an entry point; return the reason for a failure."""
        try:
            found = point.load()
            # The import already registers decorated definitions.
            if point.name not in self._known():
                self._register(found)
        except Exception as error:  # a package may contain any code
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
        """Return another owner of the entry point's name, or an empty string."""
        if self._points and point.name in self._points:
            return _package(self._points[point.name])
        if point.name not in self._known():
            return ""
        module = defined_in(self._known()[point.name])
        is_own = module.partition(".")[0] == point.module.partition(".")[0]
        return "" if is_own else module


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"package {point.dist.name}"
