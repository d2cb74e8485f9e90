"""Registered operators, with a fast path that calls their functions directly.

A call through torch's dispatcher and the Python autograd of `torch.library` takes as long as a
small kernel. Compilers, exporters, profilers, dispatch modes, transforms and special tensors
(subclasses, meta, batched or lazily negated tensors) need the registered operator. In all other
cases rifflemix calls the function directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.compat import is_batch, is_zerotensor, operators_are_watched
from rifflemix.errors import bad_argument

Function = Callable[..., Any]

_PLAIN_TENSORS = (Tensor, nn.Parameter)
_PLAIN_VALUES = {type(None), bool, int, float, tuple}  # no operator takes a tuple of tensors


class Operator:
    """A torch operator with the call signature and the gradients of its function.

    Args:
        function: function of tensors and numbers. It must not modify its arguments, and it must
            return new tensors.
        name: "rifflemix::NAME"; the operator is registered as `torch.ops.rifflemix.NAME`.
        options: options of `torch.library.custom_op`.

    Attributes:
        name: name without the namespace, as shown in autograd graphs.
        overload: the registered overload that torch calls.
    """

    def __init__(self, function: Function, name: str, **options: Any) -> None:
        self._function = function
        options.setdefault("schema", torch.library.infer_schema(function, mutates_args=()))
        self._registered = torch.library.custom_op(
            name, self._with_tensors(function), mutates_args=(), **options
        )
        namespace, _, self.name = name.partition("::")
        self.overload = getattr(getattr(torch.ops, namespace), self.name).default
        self._tensors = [
            (at, argument.name)
            for at, argument in enumerate(self.overload._schema.arguments)
            if isinstance(argument.type, torch.TensorType)
        ]
        self._differentiable: Any = None

    def register_fake(self, fake: Function) -> Function:
        """Register a fake implementation, as for `torch.library.custom_op`."""
        self._registered.register_fake(self._with_tensors(fake))
        return fake

    def _with_tensors(self, function: Function) -> Function:
        """Reject None for tensors, because `torch.ops` accepts None for any tensor."""

        @wraps(function)
        def checked(*arguments: Any) -> Any:
            for at, name in self._tensors:
                if arguments[at] is None:
                    raise bad_argument(name, "a tensor", None)
            return function(*arguments)

        return checked

    def register_autograd(self, backward: Function, *, setup_context: Function) -> None:
        """Register a backward function, as for `torch.library.custom_op`."""
        self._registered.register_autograd(backward, setup_context=setup_context)
        self._differentiable = _differentiable(self.name, self._function, backward, setup_context)

    def __call__(self, *arguments: Any) -> Any:
        """Run the function, through torch's dispatcher only if necessary."""
        if operators_are_watched():
            return self.overload(*arguments)
        needs_gradient = False
        for value in arguments:
            kind = value.__class__
            if kind in _PLAIN_TENSORS:
                has_no_memory = value.is_meta or is_zerotensor(value) or is_batch(value)
                if has_no_memory or value.is_neg():
                    return self.overload(*arguments)
                needs_gradient = needs_gradient or value.requires_grad
            elif kind not in _PLAIN_VALUES:
                return self.overload(*arguments)
        if not (needs_gradient and torch.is_grad_enabled()):
            return self._function(*arguments)
        if self._differentiable is None:
            return self.overload(*arguments)
        return self._differentiable.apply(*arguments)


def operator(name: str, **options: Any) -> Callable[[Function], Operator]:
    """Return a decorator that registers a function as an `Operator`."""

    def register(function: Function) -> Operator:
        return Operator(function, name, **options)

    return register


def _differentiable(
    name: str, function: Function, backward: Function, setup_context: Function
) -> Any:
    """Return a `torch.autograd.Function` with a combined `forward(ctx, ...)`.

    This costs half as much as a separate `setup_context`, because torch then inspects the signature
    at every call.
    """

    def forward(ctx: Any, *arguments: Any) -> Any:
        results = function(*arguments)
        setup_context(ctx, arguments, results)
        return results

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), members)
