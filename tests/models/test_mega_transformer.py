"""An independent version of MEGA's transformer gives equal logits from equal weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.nn.positions import sinusoids

DIM, HEADS, LAYERS, WIDTH, HEAD, CLASSES, LENGTH = 12, 3, 2, 20, 10, 4, 9
HOST: dict[str, Any] = {
    "dim": DIM,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "mlp_ratio": WIDTH / DIM,
    "num_classes": CLASSES,
    "max_length": LENGTH,
    "norm": "post",
    "positions": "sinusoid",
    "scale_embeddings": True,
    "norm_embedding": True,
    "head_hidden": [HEAD],
    "head_activation": "gelu",
    "head_bias": False,
}
TEXT: dict[str, Any] = {**HOST, "vocab_size": 11, "pool": "cls", "first_position": 2}
PIXELS: dict[str, Any] = {
    **HOST, "vocab_size": 256, "pool": "mean", "level_scale": [0.48, 0.24]
}  # fmt: skip


def wave(position: int) -> Tensor:
    """Compute sines, then cosines, with rates from 1 to 1/10,000 over half the channels."""
    half = DIM // 2
    rates = [math.exp(-math.log(10_000) * i / (half - 1)) for i in range(half)]
    waves = [math.sin(position * rate) for rate in rates]
    waves += [math.cos(position * rate) for rate in rates]
    return torch.tensor(waves, dtype=torch.float64)


def attention(x: Tensor, p: dict[str, Tensor], position: str, valid: list[int]) -> Tensor:
    """Compute attention on (N, C) over the valid tokens, head by head."""
    q, k, v = (
        (x @ p[f"{position}.{name}.weight"].T + p[f"{position}.{name}.bias"]).unflatten(
            1, (HEADS, -1)
        )
        for name in ("q_proj", "k_proj", "v_proj")
    )
    y = torch.zeros_like(v)
    for head in range(HEADS):
        for n in range(len(x)):
            scores = torch.stack([q[n, head] @ k[m, head] for m in valid]) / (DIM / HEADS) ** 0.5
            weights = scores.exp() / scores.exp().sum()
            y[n, head] = sum(w * v[m, head] for w, m in zip(weights, valid, strict=True))
    return y.flatten(1) @ p[f"{position}.proj.weight"].T + p[f"{position}.proj.bias"]


def norm(x: Tensor, p: dict[str, Tensor], position: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * p[f"{position}.weight"] + p[f"{position}.bias"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def logits_of(tokens: Tensor, p: dict[str, Tensor], first: int, length: int, pool: str) -> Tensor:
    """Compute logits of one embedded sequence (N, C) with `length` valid tokens."""
    x = tokens * math.sqrt(DIM)
    x = x + torch.stack([wave(first + n) for n in range(len(x))])
    x = norm(x, p, "embedding_norm")
    for layer in range(LAYERS):
        b = f"blocks.{layer}"
        x = norm(x + attention(x, p, f"{b}.mixer", list(range(length))), p, f"{b}.norm1")
        hidden = gelu(x @ p[f"{b}.mlp.fc1.weight"].T + p[f"{b}.mlp.fc1.bias"])
        x = norm(x + hidden @ p[f"{b}.mlp.fc2.weight"].T + p[f"{b}.mlp.fc2.bias"], p, f"{b}.norm2")
    vector = x[0] if pool == "cls" else x[:length].sum(0) / length
    hidden = gelu(p["head.0.weight"] @ vector + p["head.0.bias"])
    return p["head.2.weight"] @ hidden


def drawn(settings: dict[str, Any]) -> tuple[rm.models.Model, dict[str, Tensor]]:
    model = rm.create_model("encoder", **settings).double().eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.4)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    for name in list(weights):  # split the fused projection into queries, keys and values
        if ".qkv." in name:
            for part, tensor in zip("qkv", weights.pop(name).chunk(3), strict=True):
                weights[name.replace("qkv", f"{part}_proj")] = tensor
    return model, weights


def test_text_model_equals_a_literal_implementation() -> None:
    model, p = drawn(TEXT)
    ids = torch.randint(11, (2, 7))
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 5:] = True
    embedded = torch.cat((p["cls"].expand(2, 1, DIM), p["embed.weight"][ids]), dim=1)
    expected = torch.stack(
        [logits_of(embedded[0], p, 2, 8, "cls"), logits_of(embedded[1], p, 2, 6, "cls")]
    )
    # Positions are a float32 table, as in the released code.
    torch.testing.assert_close(model(ids, key_padding_mask=mask), expected, atol=1e-5, rtol=1e-5)


def test_pixel_model_equals_a_literal_implementation() -> None:
    model, p = drawn(PIXELS)
    ids = torch.randint(256, (2, 8))
    levels = (ids.double() / 255 - 0.48) / 0.24
    embedded = levels[..., None] * p["embed.proj.weight"][:, 0] + p["embed.proj.bias"]
    expected = torch.stack([logits_of(x, p, 0, 8, "mean") for x in embedded])
    torch.testing.assert_close(model(ids), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "pre"},
        {"first_position": 0},
        {"scale_embeddings": False},
        {"head_activation": "relu"},
        {"positions": "none", "first_position": 0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_changes_the_logits(change: dict[str, Any]) -> None:
    model, _ = drawn(TEXT)
    other = rm.create_model("encoder", **{**TEXT, **change}).double().eval()
    other.load_state_dict(model.state_dict(), strict=False)
    ids = torch.randint(11, (2, 7))
    assert (model(ids) - other(ids)).abs().max() > 1e-3


def test_positions_may_start_at_an_offset() -> None:
    model = rm.create_model("encoder", **TEXT)
    torch.testing.assert_close(model.positions.table, sinusoids(LENGTH + 3, DIM)[2:])


def test_class_token_has_the_scaled_initialization() -> None:
    wide = {**TEXT, "dim": 768, "num_heads": 2}
    torch.testing.assert_close(
        rm.create_model("encoder", **wide, embedding_std=0.5).cls.std().item(),
        0.5,
        rtol=0.2,
        atol=0,
    )
    plain = rm.create_model("encoder", **{**wide, "scale_embeddings": False})
    assert not plain.cls.any()


def test_weights_as_in_bert() -> None:
    model = rm.create_model("encoder", **{**TEXT, "dim": 192, "init": "bert"})
    drawn_with = {
        name: part.weight.std().item()
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear | nn.Embedding)
    }
    assert len(drawn_with) == 1 + 4 * LAYERS + 2
    for name, std in drawn_with.items():
        assert std == pytest.approx(0.02, rel=0.15), name
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith(".bias"))


def test_dropout_of_the_head_is_before_its_activation() -> None:
    model = rm.create_model("encoder", **TEXT, head_dropout=0.5).train()
    vector = torch.randn(1000, DIM)
    hidden = model.head[1](model.head[0](vector))
    whole = model.head[0](vector)
    kept = hidden != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(hidden[kept], F.gelu(2 * whole)[kept])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "learned"}, r"first_position: .*\b0\b"),
        ({"first_position": -1}, "first_position"),
        ({"scale_embeddings": 2}, "scale_embeddings"),
        ({"norm_embedding": "yes"}, "norm_embedding"),
        ({"head_dropout": 1.5}, "head_dropout"),
        ({"init": "brt"}, "bert.*got 'brt'"),
    ],
    ids=["position", "negative", "scale", "norm", "dropout", "init"],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model("encoder", **{**TEXT, **change})
