"""Buffers that identify causal attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rifflemix.surgery.masks import causal_buffers, is_causal_mask

ONES = torch.ones(5, 5)
TRIANGLES = {
    "bool": ONES.tril().bool(),
    "bytes": ONES.tril().to(torch.uint8)[None, None],
    "hidden": ONES.triu(1).bool()[None],
    "added": torch.full((5, 5), -torch.inf).triu(1),
    "meta": torch.empty(5, 5, device="meta"),
}
OTHERS = {
    "ones": ONES,
    "upper": ONES.triu(),
    "one later token": ONES.tril(1),
    "band": ONES.tril() - ONES.tril(-2),
    "earlier tokens alone": ONES.tril(-1),
    "one number": torch.ones(1, 1),
    "vector": torch.ones(5),
    "one for each head": ONES.tril().expand(2, 5, 5),
}


@pytest.mark.parametrize("case", TRIANGLES)
def test_triangular_masks_are_causal(case: str) -> None:
    module = nn.Module()
    module.register_buffer("mask", TRIANGLES[case])
    assert list(causal_buffers(module)) == ["mask"]


@pytest.mark.parametrize("buffer", OTHERS.values(), ids=OTHERS)
def test_other_masks_are_not_causal(buffer: Tensor) -> None:
    assert not is_causal_mask(buffer)
