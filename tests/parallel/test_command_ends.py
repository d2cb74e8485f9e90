"""A command ends the process group that it started, and no other.

Left to the interpreter's end, gloo's threads abort the process there now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from command_line import Cli
from rifflemix.cli import app
from rifflemix.errors import InputError


def connect() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


@pytest.fixture
def connected() -> Iterator[None]:
    connect()
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("code", [0, 2])
def test_the_group_of_a_command_ends_with_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def command(*_: object, **__: object) -> None:
        connect()
        if code:
            raise InputError("steps: expected more")

    monkeypatch.setattr(app, "app", command)
    assert cli("compare").code == code
    assert not torch.distributed.is_initialized()


@pytest.mark.usefixtures("connected")
def test_a_group_of_the_caller_stays(cli: Cli) -> None:
    assert cli("list", "mixers").code == 0
    assert torch.distributed.is_initialized()
