"""Token statistics reject arguments of the wrong type. The temperature may have its own dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import (
    StatisticsState,
    causal_token_statistics,
    compression_rate,
    token_statistics,
    variational_compression_rate,
)

W = torch.randn(2, 2, 8, 3)
TAU = torch.ones(2)
STATE = StatisticsState.zeros(2, 2, 3)
POSITION = torch.tensor([0, 1])
PI = torch.full((2, 2, 8), 0.5)
BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "dropout text": ("dropout_p", lambda: token_statistics(W, TAU, dropout_p="a")),
    "dropout False": ("dropout_p", lambda: causal_token_statistics(W, TAU, dropout_p=False)),
    "dropout tensor": ("dropout_p", lambda: token_statistics(W, TAU, dropout_p=torch.zeros(2))),
    "scale text": ("scale", lambda: variational_compression_rate(W, PI, scale="a")),
    "scale infinite": ("scale", lambda: compression_rate(W[:, 0], PI, scale=float("inf"))),
    "temperature number": ("temperature", lambda: token_statistics(W, 1.0)),
    "temperature of integers": ("temperature", lambda: token_statistics(W, TAU.long())),
    "negative position": (
        "initial_state.position",
        lambda: causal_token_statistics(W, TAU, initial_state=STATE._replace(position=-POSITION)),
    ),
    "backend number": ("backend", lambda: token_statistics(W, TAU, backend=1)),
}


@pytest.mark.parametrize(("name", "call"), BAD.values(), ids=BAD)
def test_arguments_of_a_wrong_type_are_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected"):
        call()


@pytest.mark.parametrize("run", [token_statistics, causal_token_statistics])
@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_temperature_of_another_dtype(
    run: Callable[..., Tensor], backend: str, dtype: torch.dtype
) -> None:
    """The statistics cast the temperature to their dtype. Its gradient keeps its own dtype."""
    temperature = torch.tensor([0.5, 2.0], dtype=dtype, requires_grad=True)
    y = run(W, temperature, backend=backend)
    assert y.dtype == W.dtype
    torch.testing.assert_close(y, run(W, temperature.detach().float(), backend=backend))
    (gradient,) = torch.autograd.grad(y.square().sum(), temperature)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
