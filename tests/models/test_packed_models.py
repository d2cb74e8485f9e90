"""Models on packed batches: each sequence gives the same result as alone."""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm

LENGTHS = (3, 1, 6, 3)
BOUNDS = torch.tensor([0, *accumulate(LENGTHS)])
N = sum(LENGTHS)
SIZES: dict[str, Any] = {"dim": 6, "num_heads": 2, "num_layers": 2, "max_length": 7}


def drawn(name: str, **settings: Any) -> nn.Module:
    model = rm.create_model(name, **{**SIZES, **settings}).double().eval()
    draws = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    return model


def assert_as_alone(model: nn.Module, row: Tensor, dim: int) -> None:
    """Compare outputs and all parameter gradients with separate sequences."""
    alone = copy.deepcopy(model)
    together = model(row, cu_seqlens=BOUNDS)
    apart = torch.cat([alone(part) for part in row.split(LENGTHS, 1)], dim)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-10)
    weights = torch.randn(apart.shape, dtype=torch.float64)
    (together * weights).sum().backward()
    (apart * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("mixer", "settings"),
    [
        ("tssa", {}),
        ("csp", {"positions": "sinusoid"}),
        ("linear", {"layer_scale": 0.5, "tie_embeddings": False}),
        ("softmax", {"scale_embeddings": True}),
    ],
)
def test_packed_language_models_equal_separate_sequences(
    mixer: str, settings: dict[str, Any]
) -> None:
    ids = torch.randint(9, (1, N), generator=torch.Generator().manual_seed(2))
    assert_as_alone(drawn("gpt", mixer=mixer, vocab_size=9, **settings), ids, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": "tssa", "vocab_size": 9},
        {"mixer": "sliceformer", "in_channels": 4, "pool": "max", "positions": "none"},
        {"mixer": "csp", "vocab_size": 9, "pool": "cls", "norm": "post", "tie_layers": True},
        {"mixer": "linear", "in_channels": 4, "pool": "cls", "scale_embeddings": True,
         "norm_embedding": True, "positions": "sinusoid"},
        {"mixer": "softmax", "vocab_size": 9, "pool": "length_mean"},
        {"mixer": "tssa", "vocab_size": 9, "pool": "position_mean"},
    ],
)  # fmt: skip
def test_packed_encoders_equal_separate_sequences(settings: dict[str, Any]) -> None:
    draws = torch.Generator().manual_seed(2)
    row = torch.randint(9, (1, N), generator=draws)
    if "in_channels" in settings:
        row = torch.randn(1, N, 4, generator=draws, dtype=torch.float64)
    assert_as_alone(drawn("encoder", num_classes=3, **settings), row, 0)


@pytest.mark.parametrize(
    ("mixer", "norm", "norm_kind"),
    [("tssa", "pre", "batch"), ("csp", "post", "layer"), ("sliceformer", "post", "batch")],
)
def test_packed_stacks_of_mixers_equal_separate_sequences(
    mixer: str, norm: str, norm_kind: str
) -> None:
    settings = {"num_classes": 3, "vocab_size": 9, "norm": norm, "norm_kind": norm_kind}
    ids = torch.randint(9, (1, N), generator=torch.Generator().manual_seed(2))
    assert_as_alone(drawn("mixer_stack", mixer=mixer, **settings), ids, 0)


def test_batch_norm_in_training_equals_a_padded_batch() -> None:
    packed = drawn("mixer_stack", mixer="tssa", num_classes=3, in_channels=4).train()
    padded = copy.deepcopy(packed)
    row = torch.randn(1, N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    batch = nn.utils.rnn.pad_sequence(list(row[0].split(LENGTHS)), batch_first=True)
    mask = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS).unsqueeze(1)
    together, apart = packed(row, cu_seqlens=BOUNDS), padded(batch, key_padding_mask=mask)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-10)
    for ours, theirs in zip(packed.buffers(), padded.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_gradient_checkpointing() -> None:
    model = drawn("gpt", mixer="tssa", vocab_size=9).train()
    model.gradient_checkpointing = True
    assert_as_alone(model, torch.zeros(1, N, dtype=torch.int64), 1)


@pytest.mark.parametrize(
    ("name", "settings", "options", "sentence"),
    [
        ("gpt", {"mixer": "sinkhorn"}, {}, "cu_seqlens: .*None"),
        ("encoder", {"mixer": "fnet"}, {}, "cu_seqlens: .*None"),
        ("encoder", {"padding_id": 0}, {}, "cu_seqlens: .*None"),
        ("gpt", {}, {"cu_seqlens": torch.tensor([0, 9, N])},
         r"max_length = 7.*got 9\b"),
        ("gpt", {}, {"cu_seqlens": torch.tensor([0, 5])}, rf"cu_seqlens: .*\b{N}\b"),
        ("gpt", {}, {"key_padding_mask": torch.zeros(1, N, dtype=torch.bool)},
         "key_padding_mask: .*None.*cu_seqlens"),
        ("encoder", {}, {"cu_seqlens": torch.tensor([0, 7, 7, N])},
         r"cu_seqlens: .*\b1\b"),
        ("mixer_stack", {"mixer": "s4"}, {}, r"None.*S4\b"),
        ("encoder", {"num_sequences": 2}, {}, "cu_seqlens: .*'batch'"),
    ],
)  # fmt: skip
def test_unsupported_packed_inputs_are_refused(
    name: str, settings: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    model = rm.create_model(name, **{**SIZES, "mixer": "tssa", "vocab_size": 9, **settings})
    with pytest.raises(rm.InputError, match=sentence):
        model(torch.zeros(1, N, dtype=torch.int64), **{"cu_seqlens": BOUNDS, **options})


def test_drop_path_is_refused_with_packed_sequences_in_training() -> None:
    from rifflemix.nn.block import Block

    block = Block(rm.create_mixer("tssa", 6), nn.Linear(6, 6), 6, drop_path=0.5)
    row = torch.randn(1, N, 6)
    with pytest.raises(rm.InputError, match=r"cu_seqlens: .*None.*drop_path"):
        block(row, cu_seqlens=BOUNDS)
    block.eval()(row, cu_seqlens=BOUNDS)
