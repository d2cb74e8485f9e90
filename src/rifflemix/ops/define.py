"""Definition of registered operators: argument checks, fake, gradient, and a direct call.

A call through torch's dispatcher and the Python autograd of `torch.library` takes as long as a
small kernel. Compilers, exporters, profilers, dispatch modes, transforms and special tensors
(subclasses, meta, batched or lazily negated tensors) need the registered operator. In all other
cases rifflemix calls the function directly.

Any code can call the operators as `torch.ops.rifflemix.*`, and wrong arguments would make a kernel
read or write invalid memory. So the definition of an operator contains the shapes of its tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from rifflemix.checks import FLOATS
from rifflemix.compat import is_batch, is_zerotensor, operators_are_watched
from rifflemix.errors import bad_argument
from rifflemix.ops.gradients import second_order_gradients

Function = Callable[..., Any]

_PLAIN_TENSORS = (Tensor, nn.Parameter)


class Operator:
    """A torch operator with the call signature and the gradients of its function.

    Attributes:
        name: name without the namespace, as shown in autograd graphs.
        overload: the registered overload that torch calls.
    """

    def __init__(
        self, name: str, overload: Any, function: Function, gradient: Any, tensors: tuple[int, ...]
    ) -> None:
        self.name, self.overload = name, overload
        self._function = function
        self._gradient = gradient
        self._tensors = tensors  # positions of the arguments that are tensors

    def __call__(self, *arguments: Any) -> Any:
        """Run the function, through torch's dispatcher only if necessary."""
        if operators_are_watched():
            return self.overload(*arguments)
        needs_gradient = False
        for at in self._tensors:
            value = arguments[at]
            if value is None:
                continue
            if (
                value.__class__ not in _PLAIN_TENSORS
                or value.is_meta
                or is_zerotensor(value)
                or is_batch(value)
                or value.is_neg()
            ):
                return self.overload(*arguments)
            needs_gradient = needs_gradient or value.requires_grad
        if not (needs_gradient and torch.is_grad_enabled()):
            return self._function(*arguments)
        if self._gradient is None:
            return self.overload(*arguments)
        return self._gradient.apply(*arguments)


def define(
    name: str,
    *,
    like: str | Function,
    shapes: str = "",
    dtypes: Collection[torch.dtype] = FLOATS,
    check: Function | None = None,
    outputs: str = "y",
    saves: str = "",
    backward: Function | None = None,
    formula: Function | None = None,
    device_types: str | None = None,
    schema: str | None = None,
) -> Callable[[Function], Operator]:
    """Return a decorator that registers a function as an operator.

    The function must not modify its arguments, and it must return new tensors.

    Args:
        name: name in `torch.ops.rifflemix`, or "NAMESPACE::NAME".
        like: fake implementation, a function of the arguments that returns tensors without values.
            A string is the name of an argument whose shape and dtype the result has.
        shapes: shapes and dtypes of the tensors, such as "x: B N C, steps: C int64". The first
            argument comes first. Its letters name its sizes, "..." stands for any leading sizes,
            and only the first of its sizes may be 0. A later tensor without a dtype has the dtype
            of the first tensor; "wide" is the dtype of its sums, at least float32. A size that has
            no number yet is that of the first tensor that contains it.
        dtypes: dtypes of the first argument.
        check: function of the arguments that checks numbers. It may return a dictionary with
            further sizes for `shapes`: numbers, or tuples for names that end with "...". It runs
            after the check of the first argument.
        outputs: names of the outputs. Outputs after a "|" have no gradient.
        saves: arguments and outputs that the gradient needs. "needs" is a tuple that contains for
            each argument whether its gradient is needed.
        backward: function of the saved values and the gradients of the outputs. It returns the
            gradients of the first arguments. Gradients of outputs can be None, but not all.
        formula: function of the arguments in plain torch, which computes the outputs with a
            gradient. It is differentiated for second-order gradients. `saves` then starts with
            all arguments.
        device_types: the device that the operator supports; None for every device.
        schema: schema, if the annotations of the function do not determine it.
    """

    def register(function: Function) -> Operator:
        text = schema or torch.library.infer_schema(function, mutates_args=())
        arguments = text[1 : text.index(")")].split(", ")
        kinds = {name: kind for kind, name in (argument.split() for argument in arguments)}
        checked = _with_checks(function, kinds, shapes, dtypes, check)
        namespace, _, own = name.rpartition("::")
        namespace = namespace or "rifflemix"
        registered = torch.library.custom_op(
            f"{namespace}::{own}",
            checked,
            mutates_args=(),
            device_types=device_types,
            schema=text,
        )
        registered.register_fake(_fake(like, kinds))
        gradient = None
        if backward is not None:
            rule = _Gradient(kinds, outputs, saves, backward, formula)
            registered.register_autograd(rule.differentiate, setup_context=rule.save)
            gradient = rule.as_function(own, checked)
        overload = getattr(getattr(torch.ops, namespace), own).default
        tensors = tuple(at for at, kind in enumerate(kinds.values()) if kind.startswith("Tensor"))
        # Without tensors, only torch can tell whether a call belongs to a graph.
        return Operator(own, overload, checked if tensors else overload, gradient, tensors)

    return register


def _required(kinds: Mapping[str, str]) -> list[tuple[int, str]]:
    """List the positions and names of required tensors: `torch.ops` accepts None for them."""
    return [(at, name) for at, (name, kind) in enumerate(kinds.items()) if kind == "Tensor"]


def _fake(like: str | Function, kinds: Mapping[str, str]) -> Function:
    """Return the fake implementation.

    If one tensor is on the meta device, torch runs the fake implementation. Without the check of
    the devices, its outputs would pass for results.
    """
    required = _required(kinds)
    at = list(kinds).index(like) if isinstance(like, str) else 0

    def fake(*arguments: Any) -> Any:
        for place, name in required:
            if arguments[place] is None:
                raise bad_argument(name, "a tensor", None)
        devices = [x.device for x in arguments if isinstance(x, Tensor)]
        for device in devices[1:]:
            if device != devices[0]:
                raise bad_argument("tensors", f"all on {devices[0]}", f"one on {device}")
        if callable(like):
            return like(*arguments)
        return arguments[at].new_empty(arguments[at].shape)

    return fake


class _Shape(NamedTuple):
    """The shape and the dtypes of a tensor argument.

    Attributes:
        at: position of the argument.
        name: name of the argument.
        leading: name of the sizes that come before `sizes`, such as "...", or an empty string.
        sizes: names of sizes, and numbers.
        dtypes: allowed pairs of the dtype of the first argument and the dtype of this argument.
    """

    at: int
    name: str
    leading: str
    sizes: tuple[str | int, ...]
    dtypes: frozenset[tuple[torch.dtype, torch.dtype]]

    def shape(self, sizes: Mapping[str | int, Any]) -> tuple[Any, ...]:
        """Return the shape, with the names of unknown sizes."""
        leading = sizes[self.leading] if self.leading else ()
        return (*leading, *map(sizes.get, self.sizes, self.sizes))

    def refuse(self, x: Tensor) -> NoReturn:
        """Raise the error for a wrong first argument."""
        if (x.dtype, x.dtype) not in self.dtypes:
            allowed = " or ".join(str(first) for first, _ in self.dtypes)
            raise bad_argument(self.name, f"dtype {allowed}", x.dtype)
        shape = ", ".join(filter(None, (self.leading, *map(str, self.sizes))))
        raise bad_argument(self.name, f"shape ({shape}), each at least 1", tuple(x.shape))

    def check(self, x: Tensor, sizes: dict[str | int, Any], first: Tensor) -> None:
        """Check an argument after the first argument, and add the sizes that it defines."""
        if x.shape != self.shape(sizes):
            for size, count in zip(self.sizes, x.shape, strict=False):
                if isinstance(size, str) and count:
                    sizes.setdefault(size, count)
        shape = self.shape(sizes)
        if x.shape != shape:
            raise bad_argument(self.name, f"shape {shape}".replace("'", ""), tuple(x.shape))
        if (first.dtype, x.dtype) not in self.dtypes:
            allowed = " or ".join(sorted(str(b) for a, b in self.dtypes if a == first.dtype))
            raise bad_argument(self.name, f"dtype {allowed}", x.dtype)
        if x.device != first.device:
            raise bad_argument(self.name, f"device {first.device}", x.device)


def _parse(shapes: str, names: Sequence[str], dtypes: Collection[torch.dtype]) -> Iterator[_Shape]:
    """Yield the shape of each argument in the text."""
    for part in shapes.split(",") if shapes else ():
        name, *words = part.replace(":", " ").split()
        kinds = words.pop() if words and words[-1][0].islower() else ""
        pairs = set()
        for first, kind in itertools.product(dtypes, kinds.split("|")):
            special = {"": first, "wide": torch.promote_types(first, torch.float32)}
            pairs.add((first, special[kind] if kind in special else getattr(torch, kind)))
        leading = words.pop(0) if words and words[0].endswith("...") else ""
        sizes = tuple(int(word) if word.isdigit() else word for word in words)
        yield _Shape(names.index(name), name, leading, sizes, frozenset(pairs))


def _reader(other: _Shape, first: _Shape) -> Callable[[Any], Any] | None:
    """Return a function from the first argument's shape to the shape of another argument.

    None if the first argument does not have all sizes.
    """
    if (other.leading, other.sizes) == (first.leading, first.sizes):
        return itemgetter(slice(None))
    if other.leading or (first.leading and other.sizes) or set(other.sizes) - set(first.sizes):
        return None
    at = [first.sizes.index(size) for size in other.sizes]
    neighbors = slice(at[0], at[0] + len(at)) if at else slice(0)
    are_neighbors = at == list(range(len(first.sizes)))[neighbors]
    return itemgetter(neighbors) if are_neighbors else itemgetter(*at)


def _with_checks(
    function: Function,
    kinds: Mapping[str, str],
    shapes: str,
    dtypes: Collection[torch.dtype],
    check: Function | None,
) -> Function:
    """Return `function` with a check of its arguments.

    Mixers and public functions have already checked their arguments. So for valid arguments the
    check needs only a few comparisons.
    """
    if not shapes:
        return function
    required = dict(_required(kinds))
    first, *others = _parse(shapes, list(kinds), dtypes)
    names, rank, leading = first.sizes, len(first.sizes), first.leading
    repeat = itemgetter(*map(names.index, names)) if len(set(names)) < rank else None

    def sizes_of(shape: Sequence[int]) -> dict[str | int, Any]:
        before = len(shape) - rank
        return {leading: shape[:before], **dict(zip(names, shape[before:], strict=True))}

    # Most shapes consist of sizes of the first argument.
    simple, further = [], []
    for other in others:
        read, wanted = _reader(other, first), dict(other.dtypes)
        if read is None or len(wanted) < len(other.dtypes):
            further.append(other)
        else:
            simple.append((other.at, read, wanted, other))
    late = [at for at in required if at and at not in {entry[0] for entry in simple}]

    def checked(*arguments: Any) -> Any:
        x = arguments[0]
        if x is None:
            raise bad_argument(first.name, "a tensor", None)
        shape, dtype, device = x.shape, x.dtype, x.device
        before = len(shape) - rank
        if (
            dtype not in dtypes
            or before < 0
            or (before and not leading)
            or (0 in shape and 0 in shape[before if leading else 1 :])
            or (repeat is not None and repeat(shape[before:]) != shape[before:])
        ):
            first.refuse(x)
        for at, read, wanted, other in simple:
            y = arguments[at]
            if y is None:
                if at in required:
                    raise bad_argument(other.name, "a tensor", None)
            elif y.shape != read(shape) or y.dtype is not wanted[dtype] or y.device != device:
                other.check(y, sizes_of(shape), x)
        for at in late:
            if arguments[at] is None:
                raise bad_argument(required[at], "a tensor", None)
        found = None if check is None else check(*arguments)
        if further:
            sizes = sizes_of(shape) if leading else dict(zip(names, shape, strict=True))
            if found:
                sizes.update(found)
            for other in further:
                y = arguments[other.at]
                if y is not None and (
                    y.shape != tuple(map(sizes.get, other.sizes, other.sizes))
                    or (dtype, y.dtype) not in other.dtypes
                    or y.device != device
                ):
                    other.check(y, sizes, x)
        return function(*arguments)

    return wraps(function)(checked)


class _Gradient:
    """The saved values and the gradient of an operator; see `define`."""

    def __init__(
        self,
        kinds: Mapping[str, str],
        outputs: str,
        saves: str,
        backward: Function,
        formula: Function | None,
    ) -> None:
        with_gradient, _, without = (part.split() for part in outputs.partition("|"))
        self._num_inputs, self._num_gradients = len(kinds), len(with_gradient)
        self._backward, self._formula = backward, formula
        order, wanted = [*kinds, *with_gradient, *without], saves.split()
        tensors = [n for n in wanted if n != "needs" and "Tensor" in kinds.get(n, "Tensor")]
        values = [n for n in wanted if n != "needs" and n not in tensors]
        self._tensors, self._values = ([order.index(n) for n in ns] for ns in (tensors, values))
        self._places = [[*tensors, *values, "needs"].index(n) for n in wanted]
        self._needs = "needs" in wanted

    # `map` instead of a comprehension: both methods run at every step of a training.

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the values that the gradient needs."""
        if isinstance(output, tuple):
            # torch passes None for an output without a gradient, and creates no zeros.
            ctx.set_materialize_grads(False)
            if len(output) > self._num_gradients:
                ctx.mark_non_differentiable(*output[self._num_gradients :])
            values = (*inputs, *output)
        else:
            values = (*inputs, output)
        ctx.save_for_backward(*map(values.__getitem__, self._tensors))
        ctx.values = tuple(map(values.__getitem__, self._values))

    def differentiate(self, ctx: Any, *all_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the arguments."""
        grads = all_grads[: self._num_gradients]
        if grads[0] is None and all(grad is None for grad in grads):
            return (None,) * self._num_inputs
        # Read once: gradient checkpointing recomputes the tensors at each read.
        values = ctx.saved_tensors + ctx.values
        if self._needs:
            values = (*values, ctx.needs_input_grad)
        saved = tuple(map(values.__getitem__, self._places))
        if self._formula is not None and torch.is_grad_enabled():
            found: Any = second_order_gradients(self._formula, saved[: self._num_inputs], grads)
        else:
            found = self._backward(*saved, *grads)
        found = (found,) if isinstance(found, Tensor) else found
        return (*found, *(None,) * (self._num_inputs - len(found)))

    def as_function(self, name: str, function: Function) -> Any:
        """Return a `torch.autograd.Function` with a combined `forward(ctx, ...)`.

        This costs half as much as a separate `setup_context`, because torch then inspects the
        signature at every call.
        """

        def forward(ctx: Any, *arguments: Any) -> Any:
            results = function(*arguments)
            self.save(ctx, arguments, results)
            return results

        members = {"forward": staticmethod(forward), "backward": staticmethod(self.differentiate)}
        return type(name, (torch.autograd.Function,), members)
