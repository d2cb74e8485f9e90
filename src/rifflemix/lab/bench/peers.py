"""Efficient attention layers of third-party packages, imported on first use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.lab.bench.rows import FORWARD_BACKWARD, LAYER, PEER, Shape


@dataclass(frozen=True)
class Peer:
    """A third-party package and its layer, with the default settings of the layer.

    Attributes:
        name: name on the package index.
        module: module to import.
        layer: builds the layer from (imported module, shape).
        mixer: rifflemix mixer of the same kind, or None.
        needs_gpu: whether the layer requires a GPU.
    """

    name: str
    module: str
    layer: Callable[[Any, Shape], nn.Module]
    mixer: str | None = None
    needs_gpu: bool = False

    def version(self) -> str | None:
        """Return the installed version, or None."""
        if importlib.util.find_spec(self.module.partition(".")[0]) is None:
            return None
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def build(self, shape: Shape) -> nn.Module:
        """Build the layer.

        Raises:
            InputError: the package cannot be imported, or does not support the shape.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return PeerLayer(self.name, self.layer(importlib.import_module(self.module), shape))
        except Exception as error:
            raise _failed(self.name, error) from error


class PeerLayer(nn.Module):
    """Wrapper of a third-party layer that returns only its output (B, N, C).

    Args:
        name: name of the package.
        layer: layer of the package.
    """

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens: (B, N, C) -> (B, N, C).

        Raises:
            InputError: the layer does not support the input.
        """
        try:
            y = self.layer(x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise _failed(self.name, error) from error
        return y[0] if isinstance(y, tuple) else y


def _failed(name: str, error: Exception) -> InputError:
    return InputError(f"{name} says: {' '.join(str(error).split()) or type(error).__name__}")


def _width(shape: Shape) -> int:
    return shape.channels // shape.heads


def _x_transformers(package: Any, s: Shape) -> nn.Module:
    return package.Attention(s.channels, dim_head=_width(s), heads=s.heads, flash=True)


def _nystrom(package: Any, s: Shape) -> nn.Module:
    return package.NystromAttention(s.channels, dim_head=_width(s), heads=s.heads)


def _performer(package: Any, s: Shape) -> nn.Module:
    return package.SelfAttention(s.channels, heads=s.heads, dim_head=_width(s))


def _linformer(package: Any, s: Shape) -> nn.Module:
    return package.LinformerSelfAttention(s.channels, s.tokens, heads=s.heads)


def _local(package: Any, s: Shape) -> nn.Module:
    return package.LocalMHA(dim=s.channels, window_size=128, heads=s.heads, dim_head=_width(s))


def _reformer(package: Any, s: Shape) -> nn.Module:
    return package.LSHSelfAttention(s.channels, heads=s.heads)


def _linear_attention(package: Any, s: Shape) -> nn.Module:
    return package.SelfAttention(s.channels, s.heads)


def _sinkhorn(package: Any, s: Shape) -> nn.Module:
    return package.SinkhornSelfAttention(
        s.channels, bucket_size=64, max_seq_len=s.tokens, heads=s.heads
    )


def _gated_linear_attention(package: Any, s: Shape) -> nn.Module:
    return package.GatedLinearAttention(hidden_size=s.channels, num_heads=s.heads)


PEERS = (
    Peer("x-transformers", "x_transformers", _x_transformers, "softmax"),
    Peer("nystrom-attention", "nystrom_attention", _nystrom, "nystromformer"),
    Peer("performer-pytorch", "performer_pytorch", _performer, "performer"),
    Peer("linformer", "linformer", _linformer, "linformer"),
    Peer("local-attention", "local_attention", _local, "local"),
    Peer("reformer-pytorch", "reformer_pytorch", _reformer, "reformer"),
    Peer(
        "linear-attention-transformer",
        "linear_attention_transformer.linear_attention_transformer",
        _linear_attention,
        "linear",
    ),
    Peer("sinkhorn-transformer", "sinkhorn_transformer", _sinkhorn, "sinkhorn"),
    Peer("flash-linear-attention", "fla.layers", _gated_linear_attention, needs_gpu=True),
)


def peer_status(peer: Peer, device: torch.device) -> dict[str, Any]:
    """Return name, version and availability on a device, for results and messages."""
    version = peer.version()
    if peer.needs_gpu and device.type != "cuda":
        detail = "left out: it needs a GPU"
    elif version is None:
        detail = f"not installed: pip install {peer.name}"
    else:
        detail = "takes part"
    return {
        "name": peer.name,
        "version": version,
        "takes_part": detail == "takes part",
        "detail": detail,
    }


@dataclass(frozen=True)
class PeerRatio:
    """Cost of a mixer relative to the same layer of a package, forward and backward.

    Ratios below 1 mean that the rifflemix mixer is cheaper.

    Attributes:
        mixer, package: names of the mixer and of the package.
        shape: batch, tokens, channels and heads.
        time: ratio of the median times.
        low, high: range of the time ratio: p20 / p80, and p80 / p20.
        memory: ratio of the peak memory.
    """

    mixer: str
    package: str
    shape: Mapping[str, int]
    time: float
    low: float
    high: float
    memory: float


def peer_ratios(result: Mapping[str, Any]) -> Iterator[PeerRatio]:
    """Yield a comparison for each package and each shape measured for both.

    Args:
        result: result of `rifflemix bench scaling --peers`.
    """
    timed = {
        (row["kind"], row["name"], *row["shape"].values()): row
        for row in result["rows"]
        if FORWARD_BACKWARD in row["passes"]
    }
    for peer in PEERS:
        for (*named, batch, tokens, channels, heads), row in timed.items():
            ours = timed.get((LAYER, peer.mixer, batch, tokens, channels, heads))
            if named == [PEER, peer.name] and ours is not None:
                yield _ratio(ours, row)


def _ratio(ours: Mapping[str, Any], package: Mapping[str, Any]) -> PeerRatio:
    mine, theirs = (row["passes"][FORWARD_BACKWARD] for row in (ours, package))
    return PeerRatio(
        mixer=ours["name"],
        package=package["name"],
        shape=package["shape"],
        time=mine["p50"] / theirs["p50"],
        low=mine["p20"] / theirs["p80"],
        high=mine["p80"] / theirs["p20"],
        memory=mine["peak_memory_bytes"] / theirs["peak_memory_bytes"],
    )
