"""The command line. It imports all other subpackages, and none of them imports it."""

from __future__ import annotations

import sys

from rifflemix.errors import EXIT_BAD_INPUT, InputError, require_packages


def main() -> int:
    """Run the command line.

    Returns:
        The exit code: 0, 1 (a run failed), 2 (bad input) or 130 (interrupted).
    """
    try:
        require_packages("the command line", "cli", "typer", "rich")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    from rifflemix.cli import app

    return app.main()
