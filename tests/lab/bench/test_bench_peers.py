"""Tests of layers of third-party packages, if they are installed."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from rifflemix.errors import InputError
from rifflemix.lab.bench import peers, scaling
from rifflemix.lab.bench.peers import PEERS, Peer, PeerLayer, peer_status
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings

CPU = torch.device("cpu")
SHAPE = Shape(1, 128, 32, 2)
ON_CPU = [peer for peer in PEERS if not peer.needs_gpu]


@pytest.mark.parametrize("peer", ON_CPU, ids=lambda peer: peer.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_installed_packages_keep_the_shape_and_have_gradients(peer: Peer) -> None:
    if peer.version() is None:
        pytest.skip(f"{peer.name} is not installed")
    layer = peer.build(SHAPE)
    x = torch.randn(1, 128, 32, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    assert grad.isfinite().all()
    assert grad.any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_installed_packages_are_measured_with_the_mixers() -> None:
    present = [peer.name for peer in ON_CPU if peer.version() is not None]
    if not present:
        pytest.skip("no peer is installed")
    result = scaling.run(
        (128,), dim=32, heads=2, mixers=["tssa"], peers=True, settings=Settings(repeats=1)
    )
    rows = {row["name"]: row for row in result["rows"] if row["kind"] == "peer"}
    assert list(rows) == present
    assert {row["status"] for row in rows.values()} == {"measured"}
    assert [peer["name"] for peer in result["peers"]] == [peer.name for peer in PEERS]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("missing")
def test_missing_packages_are_named_with_install_commands() -> None:
    status = peer_status(PEERS[0], CPU)
    assert "pip install x-transformers" in status.pop("detail")
    assert status == {"name": "x-transformers", "version": None, "takes_part": False}
    result = scaling.run((8,), dim=8, heads=2, mixers=[], peers=True, settings=Settings(repeats=1))
    assert not any(peer["takes_part"] for peer in result["peers"])
    assert not any(row["kind"] == "peer" for row in result["rows"])


def test_gpu_packages_are_skipped_on_a_cpu() -> None:
    (fla,) = (peer for peer in PEERS if peer.needs_gpu)
    assert "GPU" in peer_status(fla, CPU)["detail"]


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 1, None


class Fussy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("needs a\n multiple of 64")


class Huge(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")


def test_first_output_of_a_layer_is_used() -> None:
    assert torch.equal(PeerLayer("p", Pair())(torch.zeros(1, 2, 3)), torch.ones(1, 2, 3))


def test_errors_of_a_package_are_one_sentence() -> None:
    with pytest.raises(InputError, match=r"^p\b.*: .*\b64$"):
        PeerLayer("p", Fussy())(torch.zeros(1, 2, 3))
    with pytest.raises(torch.OutOfMemoryError):
        PeerLayer("p", Huge())(torch.zeros(1, 2, 3))


def test_error_while_building_a_package_layer_is_reported() -> None:
    def break_(package: types.ModuleType, shape: Shape) -> nn.Module:
        raise KeyError("gone")

    with pytest.raises(InputError, match="'gone'"):
        Peer("json-peer", "json", break_).build(SHAPE)
    with pytest.raises(InputError, match=r"absent.*no_such_module"):
        Peer("absent", "no_such_module_at_all", break_).build(SHAPE)
