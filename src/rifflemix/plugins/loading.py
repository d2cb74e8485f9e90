"""Load third-party code: Python files (`--plugin mine.py`) and entry points.

The file `mine.py` becomes the module `rifflemix.plugins.file_mine`. An environment variable stores
its path. Child processes can then unpickle its classes and look up the names that it registers.

Listing names does not import a package. The first use of a name imports its package.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from rifflemix.errors import InputError, InputWarning, bad_argument
from rifflemix.plugins.code import defined_in

_VARIABLE = "RIFFLEMIX_PLUGINS"
_PREFIX = "rifflemix.plugins.file_"
# Start of an error from a DataLoader worker process, and a line of its traceback.
_IN_PROCESS = re.compile(r"Caught \w+ in DataLoader worker process \d")
_PLACE = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)

_loaded: dict[Path, str] = {}
_registrations = 0


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers mixers, tasks, models, analyses or recipes.

    Loading an unchanged file again has no effect. A changed file runs again.

    Raises:
        InputError: the path is not a Python file, or the file raises an error or registers nothing.
    """
    file = _python_file(path)
    sha256 = _sha256(file)
    if _loaded.get(file) == sha256:
        return
    name = _module_name(file)
    for other in _loaded:
        if other != file and _module_name(other) == name:
            raise bad_argument("plugin", "files of different names", f"{other} and {file}")
    before, inherited = _registrations, os.environ.get(_VARIABLE)
    _announce(file)
    try:
        _run(file, name)
        if _registrations == before:
            raise InputError(
                f"plugin {file}: expected a registered mixer, task, model, analysis or recipe, got "
                "none. Put @rm.register_mixer before the class."
            )
    except InputError:
        _restore(inherited)
        raise
    _loaded[file] = sha256


def load_inherited() -> None:
    """Load the plugin files of the parent process."""
    for file in _announced():
        if file not in _loaded and _module_name(file) not in sys.modules:
            load_plugin(file)


def plugin_files() -> dict[str, str]:
    """Return the name and sha256 of each loaded file."""
    return {file.name: sha256 for file, sha256 in sorted(_loaded.items())}


def plugin_paths() -> list[str]:
    """Return the path of each loaded file, for other processes to load it."""
    return list(map(str, _loaded))


def file_of(definition: Any) -> str | None:
    """Return the plugin file that defines a class or function, or None."""
    module = defined_in(definition)
    for file in _loaded:
        if module == _module_name(file):
            return file.name
    return None


def plugin_place(error: BaseException) -> str | None:
    """Return file and line of an error's innermost plugin frame."""
    place = place_in(error, list(map(str, _loaded)))
    return None if place is None else f"plugin {place}"


def place_in(error: BaseException, files: Collection[str]) -> str | None:
    """Return file and line of an error's innermost frame in `files`."""
    trace, place = error.__traceback__, None
    for name, line in _PLACE.findall(_told_there(error)):
        place = f"{name}, line {line}" if name in files else place
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name in files:
            place = f"{name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def note_registration() -> None:
    """Count a registration, for `load_plugin` to detect files that register nothing."""
    global _registrations
    _registrations += 1


def _python_file(path: str | os.PathLike[str]) -> Path:
    from rifflemix.files import user_path  # imports torch; `--help` runs without it

    file = user_path("plugin", path).absolute()
    if file.suffix != ".py" or not file.is_file() or os.pathsep in str(file):
        what = "" if file.exists() else ", a path that does not exist"
        raise bad_argument("plugin", "a Python file, NAME.py", f"{path}{what}")
    return file


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"plugin {file}: cannot be read ({error.strerror})") from error


def _run(file: Path, name: str) -> None:
    sys.modules.pop(name, None)
    try:
        importlib.import_module(name)
    except InputError as error:
        raise InputError(f"plugin {file}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the file may contain any code
        reason = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, ImportError):
            reason += "; a plugin is one file; install its imports or add them to PYTHONPATH"
        place = place_in(error, [str(file)])
        if isinstance(error, SyntaxError) and error.lineno is not None:
            place = f"{file}, line {error.lineno}"
        raise InputError(f"plugin {place or file}: {reason}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, even if `__str__` fails."""
    try:
        return (str(error) or "no message").splitlines()[0][:500]
    except Exception:
        return "no message"


def in_a_line(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    there = _told_there(error).rstrip().splitlines()
    return there[-1][:500] if there else f"{type(error).__name__}: {first_line(error)}"


def _told_there(error: BaseException) -> str:
    """Return the traceback text of a DataLoader worker's error, else nothing."""
    return str(error) if _IN_PROCESS.match(first_line(error)) else ""


def _module_name(file: Path) -> str:
    return _PREFIX + re.sub(r"\W", "_", file.stem)


def _announced() -> list[Path]:
    return [Path(part) for part in os.environ.get(_VARIABLE, "").split(os.pathsep) if part]


def _announce(file: Path) -> None:
    files = dict.fromkeys([*_announced(), file])
    os.environ[_VARIABLE] = os.pathsep.join(map(str, files))


def _restore(value: str | None) -> None:
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value


class _Loader(SourceLoader):
    """Loader that always compiles the source: it writes no bytecode file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def get_filename(self, fullname: str) -> str:
        return str(self.file)

    def get_data(self, path: str | bytes) -> bytes:
        return Path(os.fsdecode(path)).read_bytes()


class _Finder(MetaPathFinder):
    """Finder of the modules of announced plugin files, also for unpickling."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(_PREFIX):
            for file in _announced():
                if _module_name(file) == fullname:
                    return spec_from_file_location(fullname, file, loader=_Loader(file))
        return None


sys.meta_path.append(_Finder())


GROUPS = {
    "mixer": "rifflemix.mixers",
    "task": "rifflemix.tasks",
    "model": "rifflemix.models",
    "analysis": "rifflemix.analyses",
    "recipe": "rifflemix.recipes",
}
"""Kind of a third-party definition -> entry point group."""


class EntryPoints:
    """The entry points of one kind, for its registry.

    Args:
        kind: key of `GROUPS`.
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
            for point in entry_points(group=GROUPS[self.kind]):
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
