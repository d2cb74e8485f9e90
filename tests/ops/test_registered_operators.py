"""Invalid calls of `torch.ops.rifflemix.*` give one error message, no invalid memory access."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from operator_calls import CALLS, FIRST, HAS_TRITON, OPS, Arguments, B
from operator_errors import SPECIAL
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops.native import library
from rifflemix.ops.triton_support import INTERPRETED


def bad_tensors(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "a dimension more", value.unsqueeze(0)
    yield "nothing", value.new_empty(0)
    yield "in 8 bits", value.to(torch.float8_e4m3fn)
    yield "complex", value.to(torch.complex64)
    if value.dim():
        yield "a dimension less", value[0]
    if name in FIRST:
        yield "no tokens", value[..., :0, :]
        yield "no channels", value[..., :0]
        yield "integers", value.int()
        return
    for dim in range(value.dim()):
        yield f"less along {dim}", value.narrow(dim, 0, value.shape[dim] - 1)
        yield f"more along {dim}", torch.cat((value, value), dim)
    yield "another type", value.to(torch.int8)
    other = torch.float32 if value.dtype == torch.float64 else torch.float64
    yield "floats of another type", value.to(other)


def bad_calls(name: str) -> Iterator[tuple[str, Arguments]]:
    good = CALLS[name]()
    first = next(iter(good))
    for key, value in good.items():
        if isinstance(value, Tensor):
            if (name, key) == ("dropout", "x"):
                continue  # any shape is valid
            for kind, bad in bad_tensors(key if key == first else "", value):
                if (name, key, kind[5:]) == ("dropout_attention", "v", "along 3"):
                    continue  # any number of value features is valid
                if (name, key, kind) == ("balance", "log_scores", "floats of another type"):
                    continue  # other float types are valid
                if (name, key, kind[5:]) == ("triton_balance", "log_scores", "along 1"):
                    continue  # any number of heads is valid
                if (key, kind) == ("sort", "more along 2"):
                    continue  # any number of sorted blocks per query block is valid
                if (key, kind[5:]) == ("kernel", "along 1"):
                    continue  # any long enough period is valid
                if (name, key, kind[5:]) == ("short_convolution", "weight", "along 0"):
                    continue  # any number of taps is valid
                if (name, key, kind[5:]) == ("short_convolution_weights", "grad", "along 1"):
                    continue  # any number of outputs is valid
                yield f"{key} {kind}", {key: bad}
    yield from SPECIAL.get(name, {}).items()


def call(name: str, arguments: Arguments) -> tuple[Tensor, ...]:
    outputs = getattr(OPS, name)(**arguments)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def needs(name: str) -> None:
    """Skip if the operator has no device or library to run on."""
    if name.startswith("triton") and not INTERPRETED:
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1 in the environment")
    plain = name.startswith(("triton", "circular_co", "power", "swap"))
    if not plain and library() is None:
        pytest.skip("needs the compiled kernels")


def test_every_operator_has_a_test_call() -> None:
    names = {name.partition("::") for name in torch._C._dispatch_get_all_op_names()}
    ours = {name.partition(".")[0] for space, _, name in names if space == "rifflemix"}
    if not HAS_TRITON:
        pytest.skip("needs Triton")
    assert ours == set(CALLS)


def answer(name: str, change: Arguments) -> str:
    """Return the error message of a changed call, or a marker for other outcomes."""
    try:
        call(name, CALLS[name]() | change)
    except InputError as error:
        return str(error)
    except Exception as error:
        return f"{error!r}\n"
    return "no error\n"


@pytest.mark.parametrize("name", CALLS)
def test_bad_call_raises_one_sentence(name: str) -> None:
    answers = {kind: answer(name, change) for kind, change in bad_calls(name)}
    assert answers
    assert {k: a for k, a in answers.items() if "\n" in a or "GPU" in a} == {}


def takes_none(name: str, argument: str) -> bool:
    """Return whether the argument is optional, or a bool (torch reads None as False)."""
    arguments = {a.name: a.type for a in getattr(OPS, name).default._schema.arguments}
    return isinstance(arguments[argument], (torch.OptionalType, torch.BoolType))


@pytest.mark.parametrize("learns", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("name", CALLS)
def test_none_is_refused_as_a_tensor(name: str, learns: bool) -> None:
    """None raises an error: torch passes it as a tensor, and kernels would read invalid memory."""
    good = {
        key: value.clone().requires_grad_(learns)
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
        for key, value in CALLS[name]().items()
    }
    for key, value in good.items():
        if takes_none(name, key):
            continue
        with pytest.raises((InputError, RuntimeError), match=key) as raised:
            call(name, good | {key: None})
        assert isinstance(raised.value, InputError) or not isinstance(value, Tensor)
    on_meta = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in good.items()}
    tensors = [key for key, value in good.items() if isinstance(value, Tensor)]
    for key in tensors if len(tensors) > 1 else ():
        if not takes_none(name, key):
            with pytest.raises(InputError, match=key):
                call(name, on_meta | {key: None})


@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_another_device_are_refused_or_traced(name: str) -> None:
    good = CALLS[name]()
    for key, value in good.items():
        if isinstance(value, Tensor):
            try:
                outputs = call(name, good | {key: value.to("meta")})
            except InputError:
                continue
            assert all(output.is_meta for output in outputs)  # only shapes were computed


def laid_out(value: Tensor, layout: int) -> Tensor:
    """Return the same values in one of three layouts.

    The layouts are: doubled strides, first axis innermost, and rows before samples. Only the
    last layout keeps the last axis innermost; for the other layouts, kernels get a copy.
    """
    if layout == 0:
        return torch.stack((value, value), -1)[..., 0]
    if layout == 1:
        return value.movedim(0, -1).contiguous().movedim(-1, 0)
    return value.transpose(0, -2).contiguous().transpose(0, -2) if value.dim() > 1 else value


def rounds(count: int) -> Iterator[tuple[int, ...]]:
    """Yield layouts per tensor: all three occur, and any two tensors differ in some round."""
    yield from (tuple((i + turn) % 3 for i in range(count)) for turn in range(3))
    for power in (1, 2):  # the other base-3 digits of the tensor's index
        if 3**power < count:
            yield tuple(i // 3**power % 3 for i in range(count))


@pytest.mark.parametrize("name", CALLS)
def test_strides_do_not_change_results(name: str) -> None:
    needs(name)
    good = CALLS[name]()
    expected = call(name, good)
    tensors = {key: value for key, value in good.items() if isinstance(value, Tensor)}
    for layouts in rounds(len(tensors)):
        strided = {
            key: laid_out(value, layout)
            for (key, value), layout in zip(tensors.items(), layouts, strict=True)
        }
        for found, whole in zip(call(name, good | strided), expected, strict=True):
            if name.startswith(("circular_co", "block_maps_b")):  # layout affects rounding
                torch.testing.assert_close(found, whole)
            else:
                assert torch.equal(found, whole), dict(zip(tensors, layouts, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_empty_batch(name: str) -> None:
    needs(name)
    good = CALLS[name]()
    empty = {
        key: value[:0]
        if isinstance(value, Tensor)
        and value.shape[:1] == (B,)
        and key not in ("temperature", "kernel")
        else value
        for key, value in good.items()
    }
    for found, whole in zip(call(name, empty), call(name, good), strict=True):
        assert found.dtype == whole.dtype
        assert found.shape[1:] == whole.shape[1:] or name.startswith("circular_corr")
