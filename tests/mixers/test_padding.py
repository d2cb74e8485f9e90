"""Compaction of valid tokens: no copy and no difference if they already come first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import rifflemix as rm
from rifflemix.mixers import padding
from rifflemix.mixers.padding import mix_valid_tokens, move_padding_back, move_padding_last

WITH_PADDING = [name for name in rm.list_mixers() if rm.mixer_card(name).padding]
LENGTHS = torch.tensor([11, 7, 1])


def padded(length: int = 11) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randn(len(LENGTHS), length, 16, dtype=torch.float64)
    return x, torch.arange(length) >= LENGTHS.unsqueeze(1)


def test_trailing_padding_is_not_moved() -> None:
    x, mask = padded()
    moved, moved_mask, order = move_padding_last(x, mask)
    assert moved is x
    assert moved_mask is mask
    assert order is None
    assert move_padding_back(moved, order) is x


@pytest.mark.parametrize("shift", [1, 5])
def test_other_padding_is_moved_to_the_end_and_back(shift: int) -> None:
    x, mask = padded()
    x, mask = x.roll(shift, 1), mask.roll(shift, 1)
    moved, moved_mask, order = move_padding_last(x, mask)
    assert torch.equal(moved_mask, padded()[1])
    for row, length in enumerate(LENGTHS):
        assert torch.equal(moved[row, :length], x[row][~mask[row]])
    assert torch.equal(move_padding_back(moved, order), x)


@pytest.mark.parametrize("shape", [(2, 1), (2, 0), (0, 4)])
def test_few_or_no_tokens(shape: tuple[int, int]) -> None:
    x, mask = torch.randn(*shape, 3), torch.ones(shape, dtype=torch.bool)
    assert torch.equal(mix_valid_tokens(lambda y, _: 2 * y, x, mask), 2 * x)


@pytest.mark.parametrize("name", WITH_PADDING)
def test_outputs_and_gradients_equal_those_of_moved_tokens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, mask = padded()
    torch.manual_seed(1)
    mixer = rm.create_mixer(name, dim=16, num_heads=4, max_length=16).double().eval()
    found = []
    for stands_last in (padding._stands_last, lambda _: False):
        monkeypatch.setattr(padding, "_stands_last", stands_last)
        inputs = x.clone().requires_grad_()
        y = mixer(inputs, key_padding_mask=mask)
        y.square().sum().backward()
        assert inputs.grad is not None
        found.append((y.detach(), inputs.grad))
    for here, moved in zip(*found, strict=True):
        torch.testing.assert_close(here, moved, atol=1e-12, rtol=1e-12)


def test_masks_without_values_are_not_read() -> None:
    mixer = rm.create_mixer("fnet", dim=16)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, mask = (mode.from_tensor(part) for part in padded())
        assert mixer(x.float(), key_padding_mask=mask).shape == x.shape
    x, mask = (part.to("meta") for part in padded())
    assert mixer.to("meta")(x.float(), key_padding_mask=mask).is_meta
    mapped = torch.func.vmap(lambda mask: padding._stands_last(mask) or mask)(
        torch.ones(2, 3, 4) > 0
    )
    assert mapped.shape == (2, 3, 4)
