"""Registered operators, and the short way to their functions.

A call through torch's dispatcher, and the autograd that `torch.library` adds in Python, take as
long as a small kernel. Compilers, exporters, profilers, dispatch modes, transforms and tensors that
are more than their numbers need the operator; where there are none, its function is called itself.
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
    """An operator of torch's that is called as its function is, with the same gradients.

    Args:
        function: of tensors and numbers, which it leaves as they are; its results are new tensors.
        name: "rifflemix::NAME"; from then on it is `torch.ops.rifflemix.NAME`.
        options: of `torch.library.custom_op`.

    Attributes:
        name: without the namespace; graphs of autograd show it.
        overload: what torch calls.
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
        """As of `torch.library.custom_op`."""
        self._registered.register_fake(self._with_tensors(fake))
        return fake

    def _with_tensors(self, function: Function) -> Function:
        """The function for callers of `torch.ops`, where None passes for any tensor."""

        @wraps(function)
        def checked(*arguments: Any) -> Any:
            for at, name in self._tensors:
                if arguments[at] is None:
                    raise bad_argument(name, "a tensor", None)
            return function(*arguments)

        return checked

    def register_autograd(self, backward: Function, *, setup_context: Function) -> None:
        """As of `torch.library.custom_op`."""
        self._registered.register_autograd(backward, setup_context=setup_context)
        self._differentiable = _differentiable(self.name, self._function, backward, setup_context)

    def __call__(self, *arguments: Any) -> Any:
        """The operator's results."""
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
    """Decorator that registers a function as an `Operator`."""

    def register(function: Function) -> Operator:
        return Operator(function, name, **options)

    return register


def _differentiable(
    name: str, function: Function, backward: Function, setup_context: Function
) -> Any:
    """A `torch.autograd.Function`. One that is given its context costs half as much as one with
    `setup_context`, for which torch studies the signature at every call.
    """

    def forward(ctx: Any, *arguments: Any) -> Any:
        results = function(*arguments)
        setup_context(ctx, arguments, results)
        return results

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), members)
