"""Tests of long inputs: memory grows with the batch, and pictures stay legible."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rifflemix as rm
from rifflemix.lab.analysis import analyze, matrix_of, own_subject, trace
from rifflemix.lab.analysis.drawing import new_figure
from rifflemix.lab.analysis.kinds.macs import costs_of
from rifflemix.lab.analysis.kinds.pattern import _coarser, reach_of
from rifflemix.lab.analysis.kinds.permutation import _draw_moves
from rifflemix.lab.runs.measure import peak_memory
from rifflemix.nn.layers import ClassToken

CPU = torch.device("cpu")
C, H, LAYERS = 16, 2, 2


def encoder(mixer: str, length: int, **sizes: Any) -> nn.Module:
    settings = {"max_length": length, "dim": C, "num_layers": LAYERS, "num_heads": H, **sizes}
    return rm.create_model("encoder", mixer=mixer, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["membership", "coherence", "macs"])
def test_memory_of_many_tokens_is_one_batch(kind: str) -> None:
    """Check the peak memory; a number for each pair of tokens would need 64 MiB."""
    length = 4096
    model = encoder("tssa", length, vocab_size=9)
    batches = [torch.randint(9, (1, length))] * 2
    peak = peak_memory(lambda: analyze(kind, model, batches), CPU)
    assert peak < 12 * LAYERS * length * C * 4, f"{peak / 2**20:.1f} MiB"


class Looker(nn.Module):
    """Model with a class token and attention over pixels."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.token, self.embed = ClassToken(C, std=0.02), nn.Linear(1, C)
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.token(self.embed(x.flatten(1).unsqueeze(-1)))
        return self.attention(tokens)


@pytest.mark.slow
def test_only_the_row_of_the_class_token_is_kept() -> None:
    side = 24
    model = Looker(rm.create_mixer("softmax", C, num_heads=H))
    images = [torch.randn(1, 1, side, side)]
    whole_matrix = H * (side * side + 1) ** 2 * 4
    peak = peak_memory(lambda: analyze("cls-attention", model, images), CPU)
    assert peak < whole_matrix / 2, f"{peak / 2**20:.1f} of {whole_matrix / 2**20:.1f} MiB"


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", ["ours", "sinkhorn", "torch", "torch, causal"])
def test_first_rows_equal_the_whole_matrix(kind: str, masked: bool) -> None:
    length = 6
    mask = torch.tensor([[False] * 6, [False] * 4 + [True] * 2]) if masked else None
    x = torch.randn(2, length, C, dtype=torch.float64)
    model: Any
    if kind.startswith("torch"):
        layer = nn.TransformerEncoderLayer(C, H, C, batch_first=True)
        model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        batch = {"src": x, "src_key_padding_mask": mask}
        batch |= {"mask": causal} if "causal" in kind else {}
    else:
        name = "softmax" if kind == "ours" else kind
        options = {} if kind == "ours" else {"block_size": 2, "max_length": length}
        model = rm.create_mixer(name, C, num_heads=H, **options).double()
        batch = {"x": x, "key_padding_mask": mask}
    ((call,),) = trace(model, [batch])
    whole, rows = matrix_of(call), matrix_of(call, first=2)
    assert whole is not None
    assert rows is not None
    torch.testing.assert_close(rows, whole[:, :, :2])


@pytest.mark.slow
def test_patterns_of_many_tokens_need_few_copies() -> None:
    length = 512
    mixer = rm.create_mixer("csp", C, group_size=1, shift=[3] * C)
    ((call,),) = trace(mixer, [torch.randn(1, length, C)])
    found: list[np.ndarray] = []
    peak = peak_memory(lambda: found.append(reach_of(call)), CPU)
    assert peak < 16 * 12 * length * C * 4, f"{peak / 2**20:.1f} MiB"
    assert np.array_equal(found[0], np.eye(length, dtype=bool)[(np.arange(length) - 3) % length])


def test_coarser_pictures_contain_every_pair() -> None:
    reached = np.zeros((7, 7), dtype=bool)
    reached[1, 6] = reached[4, 0] = True
    expected = np.zeros((3, 3), dtype=bool)
    expected[0, 2] = expected[1, 0] = True
    assert np.array_equal(_coarser(reached, 3), expected)
    assert np.array_equal(_coarser(reached, 7), reached)


def test_displacements_of_many_tokens_share_bars() -> None:
    moves = Counter(dict.fromkeys(range(-999, 1000), 2))
    axes = new_figure(2).subplots()
    _draw_moves(axes, moves)
    bars = axes.patches
    assert len(bars) <= 257
    assert sum(bar.get_height() for bar in bars) == pytest.approx(100.0)
    assert "8 tokens" in axes.get_ylabel()
    covered = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert min(covered)[0] <= -999
    assert max(covered)[1] >= 999


def test_costs_of_layers_inside_an_encoder() -> None:
    """Check layers in a sequence and in a nested module, as in models of other libraries."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(C, C)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(C, C), nn.Sequential(Block(), Block()))
            self.head = nn.Sequential(nn.Linear(C, C), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(x))

    parts, whole = costs_of(own_subject(Host(), [torch.randn(1, 3, C)]))
    one = 3 * C * C
    assert {part.name: part.macs for part in parts} == {
        "encoder.0": one,
        "encoder.1.0": one,
        "encoder.1.1": one,
        "head": one + 3 * C,
        "the rest": 0,
    }
    assert whole.macs == 4 * one + 3 * C
