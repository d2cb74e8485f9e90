"""Invalid arguments of dropout attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.ops import dropout_attention

Q, K, V = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 6)
REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "rank": (r"q: .*\(B, H, N, D\)", lambda: dropout_attention(Q[0], K, V, 0.1)),
    "heads": (r"k: .*got \(1, 1, 5\)", lambda: dropout_attention(Q, K[:, :1], V, 0.1)),
    "values": (r"v: .*got \(1, 2, 3\)", lambda: dropout_attention(Q, K, V[:, :, :3], 0.1)),
    "features": ("k: .*4 features", lambda: dropout_attention(Q, K[..., :2], V, 0.1)),
    "dtype": (r"v: .*got torch\.float64", lambda: dropout_attention(Q, K, V.double(), 0.1)),
    "one": ("dropout_p: expected", lambda: dropout_attention(Q, K, V, 1.0)),
    "both": (
        "is_causal: .*False.*got True",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(3, 5).bool(), is_causal=True),
    ),
    "mask shape": (
        r"mask: .*got \(4, 5\)",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(4, 5).bool()),
    ),
    "mask larger": (
        r"mask: .*got \(2, 2, 3, 5\)",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(2, 2, 3, 5).bool()),
    ),
    "mask integers": (
        r"mask: .*got torch\.int64",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(3, 5).long()),
    ),
    "mask dtype": (
        r"mask: .*torch.float32\b",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(3, 5).double()),
    ),
    "padding of others": (
        "is_padding: expected False",
        lambda: dropout_attention(Q, K, V, 0.1, mask=torch.ones(5).bool(), is_padding=True),
    ),
    "no padding": (
        r"mask: .*\(1, 1, 1, 5\).*is_padding.*got None",
        lambda: dropout_attention(K, K, V, 0.1, is_padding=True),
    ),
    "padding of pairs": (
        r"mask: .*got torch\.bool",
        lambda: dropout_attention(
            K, K, V, 0.1, mask=torch.ones(1, 1, 5, 5).bool(), is_padding=True
        ),
    ),
    "backend": (
        "backend: .*got 'triton'",
        lambda: dropout_attention(Q, K, V, 0.1, backend="triton"),
    ),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=message):
        call()
