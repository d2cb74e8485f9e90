"""Fixed positions do not depend on how a model is built."""

from __future__ import annotations

import pytest
import torch

from rifflemix.nn.positions import SinusoidalPositions


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_sinusoids_do_not_depend_on_the_default_dtype(
    default: torch.dtype, interleaved: bool
) -> None:
    wanted = SinusoidalPositions(512, 10, interleaved=interleaved).table
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = SinusoidalPositions(512, 10, interleaved=interleaved).table
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)
