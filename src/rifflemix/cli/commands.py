"""Build typer commands from functions and dataclasses annotated with `Option`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from rifflemix.lab.runs.options import Option, Plugins, declared_options
from rifflemix.plugins import load_plugin


def parse_path(text: str) -> Path:
    """Return a path and expand `~`. Raise an error if the text is empty.

    Shells do not expand the `~` of --out=~/runs. `files.user_path` does the same, but its module
    imports torch.
    """
    if not text:
        raise typer.BadParameter("expected a path, got an empty text")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        expected = "expected a path with ~ for the folder of a user"
        raise typer.BadParameter(f"{expected}, got {text}") from None


class Commands(typer.Typer):
    """A typer application for functions whose parameters are annotated with `Option`.

    A parameter can also be a dataclass of such fields: each field becomes an option, and the
    command receives the dataclass. Every command has the option `--plugin`.
    """

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Add a function as a command, with the arguments of typer."""
        register = super().command(*args, **kwargs)
        return lambda function: register(_with_options(function))

    def callback(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Add a function that runs before the commands, with the arguments of typer."""
        register = super().callback(*args, **kwargs)
        return lambda function: register(_with_options(function))


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer, with one parameter for each option."""
    plain = get_type_hints(function)
    groups: dict[str, Any] = {n: kind for n, kind in plain.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    own = _annotations(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _field_parameters(groups[parameter.name])
        else:
            parameters.append(
                parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=own[parameter.name])
            )

    parameters.append(_plugins())

    def command(**values: Any) -> None:
        with redirect_stdout(sys.stderr):  # stdout is for results, perhaps JSON
            for path in values.pop(_PLUGINS) or ():
                load_plugin(path)
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


_PLUGINS = "plugin"


def _plugins() -> inspect.Parameter:
    """Return the parameter `plugin`, which every command has."""

    def declared(*, plugin: Plugins = None) -> None: ...

    annotation = _annotations(declared)[_PLUGINS]
    return inspect.Parameter(
        _PLUGINS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _field_parameters(kind: Any) -> list[inspect.Parameter]:
    annotations = _annotations(kind)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=annotations[field.name],
        )
        for field in fields(kind)
    ]


def _annotations(owner: Any) -> Mapping[str, Any]:
    """Return the annotations, with each `Option` as a typer option."""
    options, plain = declared_options(owner), get_type_hints(owner)
    annotations = get_type_hints(owner, include_extras=True)
    for name, option in options.items():
        kind = plain[name]
        annotations[name] = Annotated[kind, _typer_option(name, option, kind)]
    return annotations


def _typer_option(name: str, option: Option, kind: Any) -> Any:
    return typer.Option(
        *(option.names or (f"--{name.replace('_', '-')}",)),
        metavar=option.metavar,
        parser=parse_path if Path in (kind, *get_args(kind)) else None,
        help=option.help,
    )
