"""The commands put together, and how errors end."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import typer

import rifflemix
from rifflemix.cli import (
    analyze,
    bench,
    compare,
    data,
    doctor,
    listing,
    merge,
    report,
    reproduce,
    sweep,
    train,
)
from rifflemix.cli.commands import Commands
from rifflemix.cli.interrupt import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED
from rifflemix.cli.output import checked_output, complain
from rifflemix.errors import (
    InputError,
    InputWarning,
    RunFailed,
    bad_argument,
    is_out_of_memory,
)
from rifflemix.plugins import first_line, in_a_line, plugin_place

# typer carries click inside itself in newer versions and beside itself in older ones; the base
# class of all wrong-usage errors is found the same way in both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = Commands(
    name="rifflemix",
    help="Sub-quadratic token mixers for PyTorch, and the tools that compare them fairly.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        print(f"rifflemix {rifflemix.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=merge.EPILOG)(merge.merge)
app.command(epilog=train.EPILOG)(train.train)
app.command(epilog=reproduce.EPILOG)(reproduce.reproduce)
app.command(epilog=sweep.EPILOG)(sweep.sweep)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=analyze.EPILOG)(analyze.analyze)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(listing.app, name="list")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


# Read once, when torch is imported: threads that spin while they wait crawl on a busy machine, and
# the profiler behind the memory figures prints its own starts and stops.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "KINETO_LOG_LEVEL": "99"}


def main() -> int:
    """Run the command line; returns the exit code: 0, 1 (a run failed), 2 (bad input) or 130
    (interrupted).
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    was_connected = _is_connected()
    code = _run()
    if _is_connected() and not was_connected:
        # Left to the interpreter's end, gloo's threads now and then abort the process there.
        sys.modules["torch"].distributed.destroy_process_group()
    return code


def _is_connected() -> bool:
    """Whether this process has a process group: none without torch, which some commands spare."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    )


def _run() -> int:
    try:
        _check_words(sys.argv[1:])
        with checked_output(), warnings.catch_warnings():
            warnings.simplefilter("always", InputWarning)
            warnings.showwarning = partial(_warn, warnings.showwarning)
            code = app(sys.argv[1:] or ["--help"], prog_name="rifflemix", standalone_mode=False)
    except RunFailed as error:
        _fail(str(error))
        return EXIT_FAILED
    except InputError as error:
        return _fail(str(error))
    except _UsageError as error:
        return _fail(error.format_message())  # type: ignore[attr-defined] # as above
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        place = plugin_place(error)
        if place is not None:
            return _fail(f"{place}: {in_a_line(error)}")
        if _is_nowhere():
            return _fail("the current directory is gone; change to one that exists")
        if is_out_of_memory(error):
            reason = first_line(error) or type(error).__name__
            _fail(f"not enough memory ({reason}); a smaller batch or model needs less")
            return EXIT_FAILED
        if isinstance(error, OSError) and error.strerror:
            what = f"cannot use {error.filename}" if error.filename else "the system refused"
            return _fail(f"{what}: {error.strerror}")
        raise
    return code if isinstance(code, int) else 0


def _is_nowhere() -> bool:
    """Whether the current directory has been removed: no path can be read from there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _check_words(words: Iterable[str]) -> None:
    """Raise InputError where a word, such as an old file's name, is no text: results quote all."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise bad_argument("command line", "names in UTF-8", ascii(word)) from None


def _warn(
    otherwise: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *where: Any,
    **more: Any,
) -> None:
    """Show what is meant for a user without the line of code that found it."""
    if issubclass(category, InputWarning):
        complain(f"warning: {message}")
    else:
        otherwise(message, category, *where, **more)


def _fail(message: str) -> int:
    complain(f"error: {message}")
    return EXIT_BAD_INPUT
