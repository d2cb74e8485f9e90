"""Every property of a swapped model, for a few mixers of different kinds in every host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from matrix import PROPERTIES, SLOW, TRACED, Host, Program, all_hosts, applies, swapped, tokens

import rifflemix as rm


def cases() -> Iterator[object]:
    for host in all_hosts():
        for mixer in TRACED:
            for name in PROPERTIES:
                if not applies(name, host, mixer):
                    continue
                marks = [pytest.mark.slow] if name in SLOW or not host.quick else []
                if mixer == "csp" and name in ("export", "ONNX"):
                    marks.append(pytest.mark.xfail(reason="csp is exported for even lengths only"))
                yield pytest.param(host, mixer, name, id=f"{host.name}-{mixer}-{name}", marks=marks)


@pytest.mark.parametrize(("host", "mixer", "name"), list(cases()))
def test_property(host: Host, mixer: str, name: str) -> None:
    PROPERTIES[name](host, mixer)


@pytest.mark.slow
@pytest.mark.parametrize("host", all_hosts(), ids=lambda host: host.name)
def test_every_mixer(host: Host) -> None:
    """The properties that take no compiler, for all other mixers."""
    failures = []
    for mixer in rm.list_mixers():
        for name, check in PROPERTIES.items():
            if mixer in TRACED or not applies(name, host, mixer):
                continue
            try:
                check(host, mixer)
            except Exception as error:  # whatever a host raises; all are shown at once
                failures.append(f"{mixer}, {name}: {error}")
    assert not failures


def _rank(rank: int, folder: str) -> None:
    """Half of a batch on one of two processes; the first keeps the gradients."""
    host = next(host for host in all_hosts() if host.traced)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Program(host, swapped(host, "tssa")))
    model(tokens()[rank : rank + 1]).square().mean().backward()
    if rank == 0:
        grads = {name: p.grad for name, p in model.module.named_parameters()}
        torch.save(grads, os.path.join(folder, "grads.pt"))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_share_gradients(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    host = next(host for host in all_hosts() if host.traced)
    model = Program(host, swapped(host, "tssa"))
    model(tokens()).square().mean().backward()
    grads = torch.load(tmp_path / "grads.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)
