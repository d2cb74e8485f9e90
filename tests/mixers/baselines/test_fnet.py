"""FNet against products with explicit Fourier matrices."""

from __future__ import annotations

import math

import pattern_reference as reference
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.fnet import fft_of_lengths


def fourier_matrix(n: int) -> Tensor:
    """Return the (n, n) matrix of exp(-2 pi i j k / n).

    The angle is exact because j k is reduced mod n.
    """
    power = torch.outer(torch.arange(n), torch.arange(n)) % n
    angle = -2 * math.pi * power.double() / n
    return torch.complex(angle.cos(), angle.sin())


@pytest.mark.parametrize("norm", ["backward", "ortho"])
@pytest.mark.parametrize("padding", ["none", "trailing", "leading", "scattered"])
@pytest.mark.parametrize("length", [1, 2, 7, 16, 33])
def test_equals_fourier_matrices(length: int, padding: str, norm: str) -> None:
    mixer = rm.create_mixer("fnet", 6, norm=norm)
    x = torch.randn(3, length, 6, dtype=torch.float64)
    mask = reference.masks(3, length)[padding]

    def one(tokens: Tensor) -> Tensor:
        n = len(tokens)
        y = (fourier_matrix(n) @ tokens.to(torch.complex128) @ fourier_matrix(6)).real
        return y / math.sqrt(6 * n) if norm == "ortho" else y

    expected = reference.on_valid_tokens(one, x, mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-11, rtol=1e-9)


def test_equals_torch() -> None:
    x = torch.randn(2, 12, 8)
    expected = torch.fft.fft2(x).real
    torch.testing.assert_close(rm.create_mixer("fnet", 8)(x), expected)


def test_long_transforms_stay_exact_in_float32() -> None:
    """Check the integer phases of the chirp: j^2 would exceed float32."""
    lengths = torch.tensor([9973, 8192, 5])
    x = torch.randn(3, 9973, 1)
    x[torch.arange(9973) >= lengths.unsqueeze(1)] = 0
    y = fft_of_lengths(torch.complex(x, torch.zeros_like(x)), lengths)
    for b, n in enumerate(lengths.tolist()):
        expected = torch.fft.fft(x[b, :n].double(), dim=0)
        assert (y[b, :n] - expected).abs().max() < 1e-5 * expected.abs().max()


def test_has_no_parameters() -> None:
    assert not list(rm.create_mixer("fnet", 8).parameters())


def test_bad_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"norm: .*got 'forwards'"):
        rm.create_mixer("fnet", 8, norm="forwards")
