"""Processes that share a process group and run functions together, one after the other.

Each process imports torch, so starting them takes seconds: start them once per test file.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import pytest

_START, _RUN = 200.0, 120.0  # seconds until a test fails instead of hanging


class Processes:
    """`size` processes in a gloo group; `run` calls a function on all of them.

    `run` raises the exception of any process. After an error or a time-out all processes stop.
    """

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        store = (Path(self._folder.name) / "store").as_uri()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, store, rank, size), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._collect(_START)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Return the result of `function(*args, **options)` on each process."""
        if not self._processes:
            raise RuntimeError("the processes were stopped when an earlier test failed")
        for pipe in self._pipes:
            pipe.send((function, args, options))
        return self._collect(_RUN)

    def _collect(self, seconds: float) -> list[Any]:
        """Return all results, or raise at the first failure.

        The other processes may wait for the failed process.
        """
        end, answers = time.monotonic() + seconds, dict.fromkeys(self._pipes)
        waiting = set(self._pipes)
        while waiting:
            ready = wait(waiting, end - time.monotonic())
            for pipe in ready:
                try:
                    succeeded, answers[pipe] = pipe.recv()
                except EOFError:
                    succeeded, answers[pipe] = False, "a process died"
                if not succeeded:
                    self.stop()
                    raise AssertionError(answers[pipe])
            if not ready:
                self.stop()
                raise TimeoutError(f"{len(waiting)} processes did not answer within {seconds} s")
            waiting -= set(ready)
        return list(answers.values())

    def stop(self) -> None:
        """End all processes, even busy processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        self._processes = []
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _serve(pipe: Connection, store: str, rank: int, size: int) -> None:
    import torch

    import rifflemix

    rifflemix.create_model("encoder", vocab_size=2)  # triggers lazy imports

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    pipe.send((True, None))
    while True:
        function, args, options = pipe.recv()
        try:
            pipe.send((True, function(*args, **options)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


@contextlib.contextmanager
def torchrun() -> Iterator[pytest.MonkeyPatch]:
    """Check that the processes have the environment variables of torchrun."""
    import torch

    rank, size = (str(number()) for number in (
        torch.distributed.get_rank, torch.distributed.get_world_size
    ))  # fmt: skip
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield patch
