"""Softmax attention against vectors of two public implementations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attention_checks import TOLERANCE, assert_valid_equal, padding_mask, queries_keys_values

import rifflemix as rm
from rifflemix.mixers._attention.softmax_parts import masked_attention

Golden = Callable[[str], dict[str, np.ndarray]]


def test_heads_of_a_benchmark(golden: Golden) -> None:
    arrays = golden("lra_softmax")
    q, k, v = queries_keys_values(arrays)
    expected = torch.from_numpy(arrays["y_nomask"])
    torch.testing.assert_close(masked_attention(q, k, v), expected, **TOLERANCE)
    mask = padding_mask(arrays)
    y = masked_attention(q, k, v, key_padding_mask=mask)
    assert_valid_equal(y, arrays["y_masked"], mask)


def test_layer_of_a_vision_transformer(golden: Golden) -> None:
    arrays = golden("vit_mha")
    mixer = rm.create_mixer("softmax", 12, num_heads=3)
    names = [name.removeprefix("p.") for name in arrays if name.startswith("p.")]
    mixer.load_state_dict({name: torch.from_numpy(arrays[f"p.{name}"]) for name in names})
    x = torch.from_numpy(arrays["x"]).requires_grad_()
    y = mixer(x)
    torch.testing.assert_close(y, torch.from_numpy(arrays["y"]), **TOLERANCE)
    (y * torch.from_numpy(arrays["ct"])).sum().backward()
    torch.testing.assert_close(x.grad, torch.from_numpy(arrays["gx"]), **TOLERANCE)
    for name, parameter in mixer.named_parameters():
        torch.testing.assert_close(
            parameter.grad, torch.from_numpy(arrays[f"gp.{name}"]), **TOLERANCE
        )
