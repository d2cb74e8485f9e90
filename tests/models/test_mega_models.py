"""MEGA's classifiers: the sizes of each task, the block around the layer, and the norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rifflemix as rm
from rifflemix.models.sequence.config import ScaleNorm, TokenNorm
from rifflemix.models.sequence.mega import MegaBlock
from rifflemix.nn.layers import FeedForward

# SPEC 1.4: layers, embed, hidden, z, norm, attention, and CSP's K at the task's length.
TASKS: dict[str, tuple[int, int, int, int, str, str]] = {
    "listops": (6, 80, 160, 64, "layer", "softmax"),
    "text": (4, 128, 256, 64, "scale", "softmax"),
    "retrieval": (6, 128, 256, 64, "scale", "softmax"),
    "image": (8, 160, 320, 96, "batch", "laplace"),
    "pathfinder": (6, 128, 256, 64, "batch", "laplace"),
    "pathx": (4, 64, 128, 32, "batch", "laplace"),
}
SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "dim": 16,
    "num_layers": 2,
    "z_dim": 6,
    "hidden_dim": 20,
    "max_length": 12,
    "head_hidden": [8],
    "dropout": 0.0,
}


def on_meta(name: str, **changes: Any) -> rm.models.Model:
    with torch.device("meta"):
        return rm.create_model(name, **changes)


def norm_count(kind: str, dim: int) -> int:
    return 1 if kind == "scale" else 2 * dim


@pytest.mark.parametrize("prefix", ["mega", "mega_chunk", "mega_csp"])
@pytest.mark.parametrize("task", TASKS)
def test_sizes_of_every_task(task: str, prefix: str) -> None:
    layers, dim, hidden, z, norm, attention = TASKS[task]
    model = on_meta(f"{prefix}_lra_{task}")
    s = model.settings
    assert (s["num_layers"], s["dim"], s["hidden_dim"], s["z_dim"]) == (layers, dim, hidden, z)
    assert (s["norm_kind"], s["attention_fn"]) == (norm, attention)
    queries = 0 if prefix == "mega_csp" else z
    positions = {"mega": s["max_length"], "mega_chunk": 4096 if task == "pathx" else 128}
    attention_count = 4 * z + 2 * positions.get(prefix, 0) - 1 if prefix != "mega_csp" else 0
    ema = 2 * dim * 16 * 4 + dim
    mixer = (
        ema
        + (dim * hidden + hidden)
        + (dim + 1) * (queries + hidden + 2 * dim)
        + (hidden * dim + dim)
        + attention_count
    )
    block = mixer + 2 * dim * hidden + hidden + dim + 2 * norm_count(norm, dim)
    embed = 2 * dim if "level_scale" in s else s["vocab_size"] * dim
    last = norm_count(norm, dim) if s["norm"] == "pre" else 0
    vectors = 2 if task == "retrieval" else 1
    head = vectors * dim * hidden + hidden + hidden * s["num_classes"]
    assert model.num_parameters() == embed + layers * block + last + head


# K groups at the length of the task, and the shift.
CSP_GROUPS = {
    "listops": (2000, 2000, "none"),
    "image": (1024, 1, "linear"),
    "pathfinder": (1024, 2, "linear"),
    "pathx": (16384, 2, "power"),
}


@pytest.mark.parametrize("task", CSP_GROUPS)
def test_csp_groups_of_every_task(task: str) -> None:
    length, size, shift = CSP_GROUPS[task]
    layer = on_meta(f"mega_csp_lra_{task}").blocks[0].mixer.permutation
    assert layer.groups.size_in(length) == size
    assert layer.shift == shift


def test_layer_inside_a_block_equals_the_golden_file(
    golden: Callable[[str], dict[str, np.ndarray]],
) -> None:
    """A block starts with the norm, layer and gated residual of the released code."""
    data = golden("mega_layer_softmax")
    mixer = rm.create_mixer(
        "mega", 6, max_length=16, z_dim=4, hidden_dim=8, ema_dim=3, bidirectional=True
    )
    block = MegaBlock(mixer, _zero_branch(6), 6, norm="pre", norm_kind="layer")
    names = {"norm.norm.weight": "norm1.norm.weight", "norm.norm.bias": "norm1.norm.bias"}
    weights = {
        names.get(k[2:], f"mixer.{k[2:]}"): torch.from_numpy(v)
        for k, v in data.items()
        if k.startswith("p.")
    }
    missing, unexpected = block.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.startswith(("norm2", "mlp")) for name in missing)
    y = block(torch.from_numpy(data["x"]).transpose(0, 1))
    torch.testing.assert_close(y, torch.from_numpy(data["y"]).transpose(0, 1), atol=1e-5, rtol=1e-4)


def _zero_branch(dim: int) -> nn.Module:
    branch = FeedForward(dim, dim)
    nn.init.zeros_(branch.fc2.weight)
    nn.init.zeros_(branch.fc2.bias)
    return branch


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_gate_is_on_the_residual_stream(norm: str) -> None:
    """With a closed gate (u = 0), the layer changes nothing, and there is no second residual."""
    mixer = rm.create_mixer("mega", 8, max_length=10)
    nn.init.zeros_(mixer.mx_proj.weight)
    nn.init.constant_(mixer.mx_proj.bias, -200.0)
    block = MegaBlock(mixer, _zero_branch(8), 8, norm=norm, norm_kind="scale")
    x = torch.randn(2, 10, 8)
    expected = x if norm == "pre" else block.norm2(block.norm1(x))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("kind", ["layer", "scale", "batch"])
@pytest.mark.parametrize("training", [True, False])
def test_padding_does_not_change_norms(kind: str, training: bool) -> None:
    model = rm.create_model("mega_lra_image", **SMALL, norm_kind=kind, level_scale=None)
    model.train(training)
    ids = torch.randint(11, (3, 12))
    mask = torch.arange(12) >= torch.tensor([[12], [7], [2]])
    other = torch.where(mask, (ids + 3) % 11, ids)
    first = model(ids, key_padding_mask=mask)
    torch.testing.assert_close(model(other, key_padding_mask=mask), first)


def test_batch_norm_counts_valid_tokens_only() -> None:
    norm = TokenNorm("batch", 4)
    x, mask = torch.randn(3, 5, 4), torch.rand(3, 5) < 0.4
    y = norm(x, mask)
    valid = x[~mask]
    expected = (valid - valid.mean(0)) / (valid.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(y[~mask], expected)
    torch.testing.assert_close(norm.norm.running_mean, 0.1 * valid.mean(0))


def test_scale_norm() -> None:
    norm = ScaleNorm(6).double()
    nn.init.constant_(norm.scalar, 1.5)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = 1.5 * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected, atol=1e-6, rtol=1e-6)
    assert norm(x.bfloat16()).dtype == torch.bfloat16
    assert torch.isfinite(norm(torch.zeros(1, 6, dtype=torch.float64))).all()


def test_norms_of_every_kind_add_the_same_to_a_variance() -> None:
    """`SequenceNorm` of the released code passes its 1e-5 to every kind of norm."""
    assert {TokenNorm(kind, 4).norm.eps for kind in ("layer", "scale", "batch")} == {1e-5}


def test_other_mixers_have_no_gated_residual() -> None:
    with pytest.raises(rm.InputError, match=r"mixer: .*mega.*mega_chunk.*got 'softmax'"):
        rm.create_model("mega_lra_text", mixer="softmax")


def test_attention_dropout_is_named() -> None:
    with pytest.raises(rm.InputError, match=r"^attention_dropout: .*got 1\.0"):
        rm.create_model("mega_lra_listops", attention_dropout=1.0)


def test_trains_on_a_toy_problem() -> None:
    torch.manual_seed(0)
    model = rm.create_model("mega_lra_listops", **{**SMALL, "num_layers": 1}, num_classes=2)
    ids = torch.randint(11, (32, 12))
    labels = (ids[:, 0] > 5).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
