"""The two linear maps around a permutation, shared by CSP and Sliceformer."""

from __future__ import annotations

from torch import nn

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument


def value_and_output_maps(
    dim: int, inner_dim: int | None, *, bias: bool, out_proj: bool, out_bias: bool
) -> tuple[nn.Linear, nn.Linear | nn.Identity]:
    """W_V from C to the permuted channels, and W_O back; the identity where there is no W_O.

    Raises:
        InputError: `inner_dim` under 1, or other than C without an output map.
    """
    inner = dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
    if not out_proj and inner != dim:
        raise bad_argument("inner_dim", f"dim = {dim} without an output map", inner)
    value = nn.Linear(dim, inner, bias=bias)
    return value, nn.Linear(inner, dim, bias=out_bias) if out_proj else nn.Identity()
