"""Choice of the backend of a call: one of the modules reference, eager and cpu.

The functions do not check their arguments, because layers and public functions have checked them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import becomes_onnx, in_function_transform
from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.dropout import cpu, eager, reference
from rifflemix.ops.dropout.eager import differentiate_again
from rifflemix.ops.dropout.spec import draw_seed
from rifflemix.ops.native import note_slow_call

_FAMILY = Family(reference, eager, cpu=cpu)


def dropout(x: Tensor, p: float, backend: str = "auto") -> Tensor:
    """See `rifflemix.ops.dropout`."""
    if p == 0.0:
        return x
    module = _FAMILY.pick(backend, _available(cpu.supports(x), x))
    draws = module is not eager or eager.takes_seed(x)
    return module.dropout(x, p, draw_seed() if draws else None)


def dropout_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    is_padding: bool = False,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """See `rifflemix.ops.dropout_attention`; uses torch's attention if `dropout_p` is 0."""
    if dropout_p == 0.0:
        y: Tensor
        is_bias = mask is not None and mask.is_floating_point()
        if is_bias and (in_function_transform() or becomes_onnx()):
            # torch may select its fused operator here, although it gives the mask no gradient. The
            # ONNX exporter may select it after an operator with another memory layout.
            y = eager.attend(q, k, v, mask, is_causal)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        if y.requires_grad:
            differentiate_again(y)
        y = eager.without_padding(y, mask) if is_padding else y
        return y if y.dtype == q.dtype else y.to(q.dtype)  # autocast may change the dtype
    runs = cpu.supports_attention(q, k, v, mask)
    module = _FAMILY.pick(backend, _available(runs, q))
    draws = module is not eager or eager.takes_seed(q)
    seed = draw_seed() if draws else None
    dropped: Tensor = module.dropout_attention(
        q, k, v, mask, is_causal, is_padding, dropout_p, seed
    )
    return dropped if dropped.dtype == q.dtype else dropped.to(q.dtype)


def _available(kernels_run: bool, x: Tensor) -> tuple[str, ...]:
    """List the available backends that support the arguments, slowest first."""
    if kernels_run:
        return (*PLAIN, "cpu")
    note_slow_call(x)
    return PLAIN
