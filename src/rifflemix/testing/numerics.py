"""Numerics: low precision against float64, gradients against finite differences."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rifflemix.compat import TorchDispatchMode
from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import DIM, Form, require, require_close, tokens

DRAWS = 8
ROUNDINGS = 16
"""Maximum number of successive roundings in an operator. `rounding_error` has one per operator."""
QUANTILES = ((0.5, 0.55), (0.9, 0.95))
"""Quantiles of the errors, each with a higher quantile of the allowed error."""


class Roundings(TorchDispatchMode):
    """Context in which operators round float64 results to `dtype`, randomly up or down.

    Numbers that `dtype` represents exactly do not change, so moving numbers adds no error.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated in torch
        kept = round(-math.log2(torch.finfo(dtype).eps))
        self.dropped = 1 << (52 - kept)  # of the 52 stored mantissa bits of a float64

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and round its new and in-place results."""
        out = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        results = [out] if len(returns) == 1 else list(out or ())
        for at, (result, described) in enumerate(zip(results, returns, strict=True)):
            alias = described.alias_info
            if not isinstance(result, Tensor) or (alias is not None and not alias.is_write):
                continue  # not a tensor, or a view
            results[at] = result.copy_(self.round(result)) if alias else self.round(result)
        return results[0] if len(returns) == 1 else type(out)(results) if returns else out

    def round(self, x: Tensor) -> Tensor:
        """Round `x` stochastically to the mantissa bits of the dtype."""
        if x.dtype == torch.complex128:
            return torch.view_as_complex(self.round(torch.view_as_real(x).contiguous()))
        if x.dtype != torch.float64:
            return x
        bits = x.view(torch.int64)
        return (bits + torch.randint_like(bits, self.dropped) & -self.dropped).view(x.dtype)


def rounding_error(mixer: TokenMixer, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Measure the absolute rounding error of outputs, (draws, B, N, C) float64.

    Parameters, inputs and the results of all operators are perturbed by independent roundings. The
    low-precision code of the mixer does not run, so its errors are not part of the result.
    """
    exact = mixer(x)
    errors = []
    for _ in range(DRAWS):
        tensors = {name: moved(tensor, dtype) for name, tensor in mixer.state_dict().items()}
        with Roundings(dtype):
            y = torch.func.functional_call(mixer, tensors, (moved(x, dtype),))
        errors.append((y - exact).abs())
    return torch.stack(errors)


def moved(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Perturb values by a relative error of up to eps / 2."""
    if not x.is_floating_point():
        return x
    return x * (1 + torch.finfo(dtype).eps / 2 * (2 * torch.rand_like(x) - 1))


@torch.no_grad()
def low_precision_follows_float64(form: Form) -> None:
    """Check that rounding explains the errors in float32 and bfloat16.

    Tokens and parameters are exact in the dtype, but not in a narrower dtype. Errors of successive
    roundings add up like a random walk, so the tolerance has a square root. The check compares
    quantiles, because a sort may swap values that round to the same number.
    """
    for dtype in (torch.float32, torch.bfloat16):
        mixer, x = form.build(), tokens(4, 48).to(dtype)
        for parameter in mixer.parameters():
            parameter.copy_(parameter.to(dtype))
        exact = mixer(x.double())
        error = (copy.deepcopy(mixer).to(dtype)(x.to(dtype)).double() - exact).abs()
        explained = rounding_error(mixer, x.double(), dtype)
        for share, further in QUANTILES:
            found = error.quantile(share).item()
            allowed = ROUNDINGS**0.5 * explained.quantile(further).item()
            require(
                found <= allowed,
                f"{share:.0%} of the {dtype} outputs are off by up to {found:.3g}, where roundings "
                f"explain {allowed:.3g}; the outputs are about {exact.abs().median().item():.3g}",
            )


def gradients_equal_numerical_ones(form: Form, *, every_element: bool = False) -> None:
    """Check gradients of inputs and parameters against float64 finite differences.

    Args:
        form: variant of the mixer.
        every_element: check every element of the Jacobian instead of a random direction. The mixer
            then has fewer channels, because each parameter needs forward passes.
    """
    dim = 4 if every_element else 8
    mixer = form.build(dim, num_heads=2)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(mixer, parameters, (x,))

    values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
    inputs = (tokens(2, 6, dim).requires_grad_(), *values)
    torch.autograd.gradcheck(
        run, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=not every_element
    )


def forward_derivative(mixer: TokenMixer, x: Tensor, direction: Tensor, weights: Tensor) -> Tensor:
    """Compute the derivative of the weighted outputs in a direction with torch.func.jvp."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised inside torch
        tangent: Tensor = torch.func.jvp(mixer, (x,), (direction,))[1]
    return (tangent * weights).sum()


def functional_gradient(mixer: TokenMixer, x: Tensor, direction: Tensor, weights: Tensor) -> Tensor:
    """Compute the same derivative with torch.func.grad."""
    gradient: Tensor = torch.func.grad(lambda x: (mixer(x) * weights).sum())(x)
    return (gradient * direction).sum()


def transforms_agree_or_are_refused(form: Form) -> None:
    """Check torch.func.jvp and torch.func.grad against autograd, if torch supports them.

    Uses the math backend of attention, because fused attention has no forward mode.
    """
    mixer = form.build(8, num_heads=2).requires_grad_(False)
    x, direction, weights = (tokens(2, 6, 8) for _ in range(3))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((mixer(leaf) * weights).sum(), leaf)
    expected = (gradient * direction).sum()
    for derivative in (forward_derivative, functional_gradient):
        try:
            with sdpa_kernel(SDPBackend.MATH):
                found = derivative(mixer, x, direction, weights)
        except RuntimeError:  # not supported by torch
            continue
        require_close(found, expected, derivative.__name__, atol=1e-5, rtol=1e-4)


def a_graph_changes_no_gradient(form: Form) -> None:
    """Check that create_graph=True does not change gradients, also in streaming."""
    dropping = form.new(dropout=0.2).double().train()
    x, mask = tokens(2, 13), torch.zeros(2, 13, dtype=torch.bool)
    mask[0, 9:] = True
    for mixer in (form.build(), dropping):
        for used in form.masks(mask):
            _require_same_with_a_graph(
                mixer, partial(mixer, key_padding_mask=used), x, "in one pass"
            )
        if form.card.streaming and form.causal:
            _require_same_with_a_graph(mixer, partial(_streamed, mixer), x, "in a stream")


def _streamed(mixer: TokenMixer, x: Tensor) -> Tensor:
    """Prefill all tokens except the last three, then run three steps."""
    y, state = mixer.prefill(x[:, :-3])
    outputs = [y]
    for x_t in x[:, -3:].unbind(1):
        y_t, state = mixer.step(x_t, state)
        outputs.append(y_t.unsqueeze(1))
    return torch.cat(outputs, 1)


def _require_same_with_a_graph(
    mixer: TokenMixer, run: Callable[[Tensor], Tensor], x: Tensor, what: str
) -> None:
    leaves = [x.clone().requires_grad_(), *mixer.parameters()]
    y = run(leaves[0])
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
    found = [
        torch.autograd.grad(loss, leaves, create_graph=create_graph, allow_unused=True)
        for create_graph in (True, False)
    ]
    require_close(found[0], found[1], f"create_graph=True {what}", atol=1e-9, rtol=1e-7)


def every_parameter_is_used(form: Form) -> None:
    """Check that every parameter has a nonzero gradient."""
    mixer = form.build()
    mixer(tokens(2, 64, DIM).requires_grad_()).square().sum().backward()
    dead = [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]
    require(not dead, f"no gradient reaches {dead}")
