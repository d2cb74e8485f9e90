"""MLP-Mixer's token mixing per channel, and the recorded tiny model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_all_channels_share_the_weights(length: int, bias: bool) -> None:
    mixer = rm.create_mixer("mlp_mixer", 6, max_length=9, hidden_dim=4, bias=bias).double()
    x = torch.randn(2, length, 6, dtype=torch.float64)
    mask = torch.rand(2, length) < 0.4
    y = mixer(x, key_padding_mask=mask)
    for b in range(2):
        for c in range(6):
            column = torch.zeros(9, dtype=torch.float64)  # all positions; missing ones are zero
            column[:length] = x[b, :, c].masked_fill(mask[b], 0.0)
            out = mixer.fc2(F.gelu(mixer.fc1(column)))[:length].masked_fill(mask[b], 0.0)
            torch.testing.assert_close(y[b, :, c], out, atol=1e-12, rtol=1e-9)


def test_equals_the_recorded_model(golden) -> None:
    """Rebuild the recorded model: patch embedding, two blocks and classifier."""
    g = {name: torch.from_numpy(value) for name, value in golden("mlp_mixer_tiny").items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, g[f"p.{name}.weight"], g[f"p.{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], g[f"p.{name}.weight"], g[f"p.{name}.bias"])

    patches = F.unfold(g["x"], 4, stride=4).mT  # (B, 4, 3 * 4 * 4)
    x = linear(patches, "channel_change")
    for i in range(2):
        block = f"mixer_blocks.{i}"
        mixer = rm.create_mixer("mlp_mixer", x.shape[-1], max_length=4, hidden_dim=8)
        for ours, theirs in (("fc1", "mlp.0"), ("fc2", "mlp.2")):
            for kind in ("weight", "bias"):
                value = g[f"p.{block}.mlp_patch.{theirs}.{kind}"]
                getattr(getattr(mixer, ours), kind).data.copy_(value)
        x = x + mixer(norm(x, f"{block}.ln0"))
        hidden = F.gelu(linear(norm(x, f"{block}.ln1"), f"{block}.mlp_channel.mlp.0"))
        x = x + linear(hidden, f"{block}.mlp_channel.mlp.2")
    y = linear(x.flatten(1), "linear")
    # Values reach 50. The recorded float32 values differ from float64 by 4.5e-5.
    torch.testing.assert_close(y, g["y"], atol=1e-4, rtol=1e-4)


def test_default_hidden_width_is_half_the_channels() -> None:
    assert rm.create_mixer("mlp_mixer", 512, max_length=4).hidden_dim == 256
    assert rm.create_mixer("mlp_mixer", 1, max_length=4).hidden_dim == 1


@pytest.mark.parametrize("options", [{"hidden_dim": 0}, {"hidden_dim": 1.5}], ids=str)
def test_bad_hidden_width_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="hidden_dim: expected"):
        rm.create_mixer("mlp_mixer", 8, max_length=4, **options)
