"""The application: all commands, error messages and exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import typer

from rifflemix.cli import analyze, bench, compare, convert, listing, reproduce, trained, work
from rifflemix.cli.commands import Commands
from rifflemix.cli.output import checked_output, complain
from rifflemix.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    InputError,
    InputWarning,
    RunFailed,
    bad_argument,
    is_out_of_memory,
)
from rifflemix.plugins import first_line, in_a_line, plugin_place
from rifflemix.version import VERSION

# Without this, Python searches torch's objects for garbage when the process ends: 2 s.
atexit.register(gc.freeze)

# Newer versions of typer contain click and older ones depend on it. This finds click's base class
# of usage errors in both.
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
        print(f"rifflemix {VERSION}")
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
app.command(epilog=compare.MERGE_EPILOG)(compare.merge)
app.command(epilog=compare.TRAIN_EPILOG)(compare.train)
app.command(epilog=reproduce.EPILOG)(reproduce.reproduce)
app.command(epilog=reproduce.SWEEP_EPILOG)(reproduce.sweep)
app.command(epilog=work.EPILOG)(work.work)
app.command(epilog=trained.GENERATE_EPILOG)(trained.generate)
app.command(epilog=reproduce.REPORT_EPILOG)(reproduce.report)
app.command(epilog=analyze.EPILOG)(analyze.analyze)
app.command(epilog=trained.PREDICT_EPILOG)(trained.predict)
app.command(epilog=trained.EXPORT_EPILOG)(trained.export)
app.command(epilog=convert.EPILOG)(convert.convert)
app.command(epilog=listing.DOCTOR_EPILOG)(listing.doctor)
app.add_typer(listing.app, name="list")
app.add_typer(listing.data_app, name="data")
app.add_typer(bench.app, name="bench")


# torch reads these variables when it is imported. Waiting threads should not spin, because this
# slows down a busy machine. The profiler that measures memory should not print.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "KINETO_LOG_LEVEL": "99"}


def main() -> int:
    """Run the command line.

    Returns:
        The exit code: 0, 1 (a run failed), 2 (bad input) or 130 (interrupted).
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    was_connected = _is_connected()
    code = run_checked(
        lambda: app(sys.argv[1:] or ["--help"], prog_name="rifflemix", standalone_mode=False)
    )
    if _is_connected() and not was_connected:
        # If gloo's threads still run when the interpreter exits, they sometimes abort the process.
        sys.modules["torch"].distributed.destroy_process_group()
    return code


def _is_connected() -> bool:
    """Return whether this process has a process group. Some commands do not import torch."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    )


def run_checked(command: Callable[[], object]) -> int:
    """Run a command, print an error as one sentence, and return the exit code of `main`."""
    try:
        _check_words(sys.argv[1:])
        with checked_output(), warnings.catch_warnings():
            warnings.simplefilter("always", InputWarning)
            warnings.showwarning = partial(_warn, warnings.showwarning)
            code = command()
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
    """Return whether the current directory was removed, so that no path can be read."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _check_words(words: Iterable[str]) -> None:
    """Raise InputError if a word is not UTF-8. Results contain the command."""
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
    """Show warnings for users without a line of code."""
    if issubclass(category, InputWarning):
        complain(f"warning: {message}")
    else:
        otherwise(message, category, *where, **more)


def _fail(message: str) -> int:
    complain(f"error: {message}")
    return EXIT_BAD_INPUT
