"""The process of one worker; `rifflemix.lab.experiments.workers` starts it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from threading import Event, Thread
from typing import IO

from rifflemix.errors import InputError, RunFailed


def main() -> int:
    """Carry out the runs of the folder in the first argument until standard input ends.

    Returns:
        The exit code, as `rifflemix`. Code 1 means that a run failed and may be tried again.
    """
    folder = Path(sys.argv[1]).absolute()
    # Processes that a run starts must not inherit the pipe.
    pipe = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from rifflemix.cli.app import run_checked

    return run_checked(lambda: _work(folder, pipe))


def _work(folder: Path, pipe: IO[bytes]) -> int:
    from rifflemix.cli.work import work_on

    payload = pickle.load(pipe)
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())  # scancel sends SIGTERM to all processes
    Thread(target=_wait, args=(pipe, ended), daemon=True).start()
    try:
        return work_on(folder, payload, should_stop=ended.is_set)
    except InputError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise RunFailed(f"{type(error).__name__}: {error}") from error


def _wait(pipe: IO[bytes], ended: Event) -> None:
    pipe.read()
    ended.set()


if __name__ == "__main__":
    sys.exit(main())
