"""Public functions of this family: they check their arguments and call a backend."""

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
from rifflemix.ops.dropout import backends


def dropout(x: Tensor, p: float, *, backend: str = "auto") -> Tensor:
    """Zero each element with probability p; divide the others by 1 - p.

    On a CPU, a seed from torch's generator determines the dropped elements.

    - The result does not depend on the number of threads or on the backend.
    - The same elements are dropped again if the generator's state is restored, for example in a
      resumed run or a checkpointed block. Every call draws a new seed.
    - Only the seed is kept for the gradient.

    The function uses torch's own dropout on other devices, and in compiled graphs without the
    kernels. It also does so under torch.func transforms and forward-mode differentiation.

    Args:
        x: floating-point tensor of any shape.
        p: probability in [0, 1), exact to 2^-32. There is no training flag: pass 0 for evaluation.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        Tensor like `x`; `x` itself for p = 0. Dropped elements are 0 even if x is not finite.

    Raises:
        InputError: wrong dtype, `p` out of range, or a backend that does not support the call.

    Source: Srivastava et al. 2014, "Dropout". The random numbers follow Salmon et al. 2011,
    "Parallel Random Numbers: As Easy as 1, 2, 3".

    Example:
        >>> import torch, rifflemix as rm
        >>> y = rm.ops.dropout(torch.ones(1000), p=0.5)
        >>> y.unique()
        tensor([0., 2.])
    """
    check_floating("x", x, "(...)")
    return backends.dropout(x, check_probability("p", p), backend)


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
    """Compute attention with dropout on the weights: dropout(softmax(q k^T / sqrt(D))) v.

    On a CPU, only the weights of a few queries are in memory at a time, forward and backward.
    torch's attention with dropout stores all N x S weights. The function drops the same elements
    as `dropout` on the (B, H, N, S) weights.

    The function uses torch's `scaled_dot_product_attention` if `dropout_p` is 0, on other devices,
    and in the other cases listed for `dropout`.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, S, D) keys.
        v: (B, H, S, E) values.
        dropout_p: probability in [0, 1) of dropping a weight. There is no training flag.
        mask: tensor that broadcasts to (B, H, N, S), or None. Either bool, True = may attend, or
            floating point, added to the scores; the latter needs memory for all weights. The
            output of a query without keys is 0.
        is_causal: query n attends only to keys 0 ... n. Not supported together with `mask`.
        is_padding: `mask` is a (B, 1, 1, N) bool padding mask, False = padding, and queries and
            keys are the same tokens. Outputs at padding are then 0. Right padding adds no cost on
            a CPU.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, H, N, E) tensor with the dtype of `q`.

    Raises:
        InputError: incompatible shapes, dtypes or devices, a value out of range, or a backend that
            does not support the call.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation (1) and section 5.4. The
    order of the computation follows Dao et al. 2022, "FlashAttention", algorithms 2 and 4.

    Example:
        >>> import torch, rifflemix as rm
        >>> q, k, v = torch.randn(3, 1, 2, 16, 8)
        >>> rm.ops.dropout_attention(q, k, v, dropout_p=0.1, is_causal=True).shape
        torch.Size([1, 2, 16, 8])
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
    return backends.dropout_attention(q, k, v, mask, is_causal, is_padding, dropout_p, backend)


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
