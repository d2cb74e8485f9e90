"""Commands whose options are declared outside the command line."""

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
    """A path as typed; an empty one would name the current folder.

    Shells leave the ~ of --out=~/runs as it is, which would name a folder of that name.
    `files.user_path` would do it, too, but importing that room takes torch.
    """
    if not text:
        raise typer.BadParameter("expected a path, got an empty text")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        expected = "expected a path whose ~ stands for a user's folder"
        raise typer.BadParameter(f"{expected}, got {text}") from None


class Commands(typer.Typer):
    """Commands whose parameters are annotated with `Option`, or are dataclasses of such fields.

    A dataclass stands in the command line as its fields, in its place among the parameters, and
    comes to the command as one value. Every command takes `--plugin`, last of its options.
    """

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Add a function as a command; arguments as for typer."""
        register = super().command(*args, **kwargs)
        return lambda function: register(_with_options(function))

    def callback(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Add a function as what runs before the commands; arguments as for typer."""
        register = super().callback(*args, **kwargs)
        return lambda function: register(_with_options(function))


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer wants it: one parameter for each option."""
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
    """The option of every command that loads files before the command starts."""

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
    """Annotations with every `Option` in the words of typer."""
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
