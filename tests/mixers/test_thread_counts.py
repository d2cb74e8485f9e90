"""The number of CPU threads changes no bit of outputs and gradients, but where the card says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rifflemix.mixers import create_mixer, list_mixers, mixer_card
from rifflemix.runs.device import using_threads


def outputs(name: str, threads: int) -> list[Tensor]:
    torch.manual_seed(0)
    mixer = create_mixer(name, 64, num_heads=4, max_length=128)
    x = torch.randn(8, 128, 64, requires_grad=True)
    with using_threads(threads):
        y = mixer(x)
        y.square().sum().backward()
    tensors = [y.detach(), x.grad, *(parameter.grad for parameter in mixer.parameters())]
    return [tensor for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("name", list_mixers())
def test_threads_change_no_bit(name: str) -> None:
    one, two = outputs(name, 1), outputs(name, 2)
    pairs = list(zip(one, two, strict=True))
    if mixer_card(name).thread_sums:  # the order of a sum, nothing else
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-2) for a, b in pairs)
    else:
        assert all(torch.equal(a, b) for a, b in pairs)
