"""Tasks in which recurrent mixers differ: parity, recall by key, and selective copying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.tasks import load_task

DIM, LENGTH = 32, 16
UNSCORED = -100
Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """A mixer and two linear layers, each with a norm and a residual connection."""

    def __init__(self, mixer: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(2))
        self.mixer = rm.create_mixer(mixer, DIM, num_heads=2, causal=True, **options)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def tagger(tokens: int, mixer: str, layers: int = 1, **options: Any) -> nn.Module:
    """Build a model that predicts a label of each token."""
    torch.manual_seed(0)
    blocks = [Block(mixer, options) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(tokens, DIM), *blocks, nn.Linear(DIM, tokens))


def trained(model: nn.Module, batches: list[Batch], rate: float) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=len(batches), pct_start=0.1
    )
    for inputs, labels in batches:
        logits = model(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=UNSCORED)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    inputs, labels = batch
    scored = labels != UNSCORED
    return float((model(inputs).argmax(-1)[scored] == labels[scored]).double().mean())


def parities(samples: int, length: int) -> Batch:
    """Draw bits, and the parity of each prefix."""
    bits = torch.randint(0, 2, (samples, length))
    return bits, bits.cumsum(1) % 2


def parity_at_four_times_the_length(mixer: str, **options: Any) -> float:
    """Train on 3 to 16 bits; return the accuracy on 64 bits."""
    model = tagger(2, mixer, **options)
    batches = [parities(64, int(torch.randint(3, LENGTH + 1, ()))) for _ in range(400)]
    return accuracy(trained(model, batches, 1e-2), parities(256, 4 * LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["deltanet", "rwkv7"])
def test_negative_eigenvalues_learn_parity(mixer: str) -> None:
    assert parity_at_four_times_the_length(mixer, negative_eigenvalues=True) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["mamba2", "gla", "deltanet"])
def test_positive_eigenvalues_do_not_learn_parity(mixer: str) -> None:
    options = {"state_dim": 16} if mixer == "mamba2" else {}
    assert parity_at_four_times_the_length(mixer, **options) < 0.75


@pytest.mark.slow
def test_rates_up_to_1_lose_parity_at_longer_lengths() -> None:
    """The eigenvalues of RWKV-7 are then at least -0.455, so the sign fades."""
    assert parity_at_four_times_the_length("rwkv7") < 0.85


def batches_of(name: str, split: str, size: int, **options: Any) -> Iterator[Batch]:
    samples = load_task(name, num_validation=1, **options).split(split)
    for start in range(0, len(samples), size):
        inputs, labels = zip(*(samples[start + row] for row in range(size)), strict=True)
        yield torch.stack(inputs).long(), torch.stack(labels).long()


def accuracy_on(name: str, model: nn.Module, **options: Any) -> float:
    """Train on 1000 batches of 32 samples of a task."""
    options |= {"num_train": 1000 * 32, "num_test": 256}
    trained(model, list(batches_of(name, "train", 32, **options)), 1e-2)
    (test,) = batches_of(name, "test", 256, **options)
    return accuracy(model, test)


@pytest.mark.slow
def test_deltanet_solves_multi_query_recall() -> None:
    model = tagger(64, "deltanet")
    assert accuracy_on("mqar", model, vocab_size=64, length=32, pairs=4) > 0.95


@pytest.mark.slow
def test_mamba2_solves_selective_copying() -> None:
    model = tagger(10, "mamba2", layers=2, state_dim=16)
    sizes = {"vocab_size": 10, "length": 24, "tokens": 4}
    assert accuracy_on("selective_copying", model, **sizes) > 0.95
