"""Every property of a swapped model, for a few mixers of different kinds in every host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from matrix import PROPERTIES, SLOW, TRACED, Program, applies, swapped, tokens
from matrix_hosts import HOSTS, Host, all_hosts

import rifflemix as rm


def cases() -> Iterator[object]:
    for host in all_hosts():
        for mixer in TRACED:
            for name in PROPERTIES:
                if not applies(name, host, mixer):
                    continue
                is_slow = name in SLOW or not host.quick or (name == "DDP" and mixer != "tssa")
                marks = [pytest.mark.slow] if is_slow else []
                yield pytest.param(host, mixer, name, id=f"{host.name}-{mixer}-{name}", marks=marks)


@pytest.mark.parametrize(("host", "mixer", "name"), list(cases()))
def test_mixer_in_model_has_property(host: Host, mixer: str, name: str) -> None:
    PROPERTIES[name](host, mixer)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(all_hosts())), ids=lambda i: all_hosts()[i].name)
def test_every_mixer_works_in_every_model(place: int) -> None:
    """Check properties without a compiler for all other mixers.

    Each mixer is tested in every fifth host.
    """
    host, failures = all_hosts()[place], []
    for turn, mixer in enumerate(rm.list_mixers()):
        for name, check in PROPERTIES.items():
            if (turn + place) % 5 or mixer in TRACED or not applies(name, host, mixer):
                continue
            try:
                check(host, mixer)
            except Exception as error:  # hosts raise anything; report all errors at once
                failures.append(f"{mixer}, {name}: {error}")
    assert not failures


@pytest.mark.slow
def test_two_processes_share_gradients(tmp_path: Path) -> None:
    file = tmp_path / "grads.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", str(Path(__file__).with_name("shared_gradients.py")), str(file)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grads = torch.load(file, weights_only=True)
    model = Program(HOSTS[1], swapped(HOSTS[1], "tssa"))
    model(tokens()).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)
