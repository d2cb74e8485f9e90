"""The public functions of this family: arguments checked, then handed to `unchecked`."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.checks import (
    check_bool,
    check_floating,
    check_like,
    check_probability,
    check_tokens,
)
from rifflemix.errors import bad_argument
from rifflemix.ops.dropout import unchecked


def dropout(x: Tensor, p: float, *, backend: str = "auto") -> Tensor:
    """Each element becomes zero with probability p, the others x / (1 - p).

    On a CPU the elements that are dropped follow from one number that torch's generator draws: the
    same for any number of threads and for every backend, again where the generator's state is
    restored (a resumed run, a checkpointed block), others in the next call. Only that number is
    kept for the gradient. On other devices, in a graph that torch compiles without the kernels, and
    under transforms of torch.func or forward-mode differentiation it is torch's own dropout.

    Args:
        x: floating-point, of any shape.
        p: probability in [0, 1), exact to 2^-32; it drops whenever it is not 0, so pass 0 when not
            training.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        Like `x`; `x` itself for p = 0. Elements that are dropped are 0 also where x is not finite.

    Raises:
        InputError: another dtype, `p` out of range, or a backend that cannot run this.

    Source: Srivastava et al. 2014, "Dropout"; the numbers are those of Salmon et al. 2011,
    "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    check_floating("x", x, "(...)")
    return unchecked.dropout(x, check_probability("p", p), backend)


def dropout_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    is_padding: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention some of whose weights are dropped: dropout(softmax(q k^T / sqrt(D))) v.

    On a CPU the N x S weights exist for a few queries at a time only, forward and backward; torch's
    attention holds them all where it drops some. What is dropped is that of `dropout` on the
    (B, H, N, S) weights. Without dropout, on other devices and wherever `dropout` says so it is
    torch's `scaled_dot_product_attention`.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, S, D) keys.
        v: (B, H, S, E) values.
        dropout_p: probability in [0, 1) of dropping a weight; it drops whenever it is not 0.
        mask: broadcasts to (B, H, N, S): bool, True = may attend, or numbers that are added to the
            scores, for which all weights are held. A query that may attend nowhere gives 0.
        is_causal: query n attends to keys 0 ... n only; without a mask.
        is_padding: `mask`, a bool (B, 1, 1, N), False = padding, is of tokens that are queries and
            keys. Outputs at padding are then 0; padding that stands last costs nothing on a CPU.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, H, N, E), the dtype of `q`.

    Raises:
        InputError: shapes, dtypes or devices that do not fit, a value out of range, or a backend
            that cannot run this.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation (1) and section 5.4; the
    order of the work is that of Dao et al. 2022, "FlashAttention", algorithms 2 and 4.
    """
    check_tokens("q", q, rank=4, layout="(B, H, N, D)")
    _check_keys("k", k, q, k)
    _check_keys("v", v, q, k)
    if k.shape[3] != q.shape[3]:
        raise bad_argument("k", f"{q.shape[3]} features, as q", k.shape[3])
    check_probability("dropout_p", dropout_p)
    if check_bool("is_causal", is_causal) and mask is not None:
        raise bad_argument("is_causal", "False with a mask", True, "make the mask causal")
    _check_mask(mask, q, (*q.shape[:3], k.shape[2]))
    if check_bool("is_padding", is_padding):
        _check_padding(mask, q, k)
    return unchecked.dropout_attention(q, k, v, mask, is_causal, is_padding, dropout_p, backend)


def _check_keys(name: str, tokens: Tensor, q: Tensor, k: Tensor) -> None:
    check_tokens(name, tokens, rank=4, layout="(B, H, S, features)")
    if tokens.shape[:3] != (*q.shape[:2], k.shape[2]):
        expected = f"(B, H, S) = {(*q.shape[:2], k.shape[2])}"
        raise bad_argument(name, expected, tuple(tokens.shape[:3]))
    check_like(name, tokens, q, "q")


def _check_mask(mask: Tensor | None, q: Tensor, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_argument("mask", "a bool tensor, True = may attend, or numbers", got)
    try:
        fits = torch.broadcast_shapes(mask.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise bad_argument("mask", f"what broadcasts to (B, H, N, S) = {shape}", tuple(mask.shape))
    if mask.device != q.device:
        raise bad_argument("mask", f"device {q.device} of q", mask.device)
    if mask.dtype != torch.bool and mask.dtype != q.dtype:
        raise bad_argument("mask", f"bool or {q.dtype}, as q", mask.dtype)


def _check_padding(mask: Tensor | None, q: Tensor, k: Tensor) -> None:
    shape = (q.shape[0], 1, 1, q.shape[2])
    if q.shape[2] != k.shape[2]:
        raise bad_argument("is_padding", "False where the queries are not the keys", True)
    if mask is None or mask.dtype != torch.bool or mask.shape != shape:
        got = None if mask is None else f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise bad_argument("mask", f"bool of shape {shape} with is_padding", got)
