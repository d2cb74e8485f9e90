"""All backends of every operator agree, for all values, sizes, masks and memory layouts.

Permutations and dropout agree bit by bit. Sums are compared with float64: the error of a
backend may be at most four times the error of the plainest formula in the same type.
"""

from __future__ import annotations

import random
from typing import Any

import attack_operators
import pytest
import torch
from attack_calls import Call, outputs_and_gradients
from attack_operators import CLOSE, EXACT
from attack_tensors import numbers, size
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rifflemix as rm
from rifflemix import ops
from rifflemix.errors import InputError
from rifflemix.lab.runs.environment import using_threads
from rifflemix.mixers._convolution.long_convolution import circular_convolve, circular_correlate
from rifflemix.ops.convolution.backends import short_convolution
from rifflemix.ops.native import library
from rifflemix.ops.permutation import reference as permutation_reference

CASES = 12


def supported(call: Call, backend: str) -> list[Tensor] | None:
    """Return the results, or None if the backend does not support the arguments."""
    try:
        return outputs_and_gradients(call, backend)
    except InputError as error:
        if "backend: expected" in str(error) and backend in ("cpu", "triton"):
            return None
        raise


def same(a: Tensor, b: Tensor) -> bool:
    """Compare bit by bit, except for the bits of NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    nan = a.isnan()
    signs = torch.equal(a.signbit() | nan, b.signbit() | nan)
    return signs and torch.equal(nan, b.isnan()) and torch.equal(a[~nan], b[~nan])


@pytest.mark.parametrize("name", EXACT)
def test_backends_agree_bit_by_bit(name: str, attack: Any) -> None:
    def case(draw: random.Random) -> None:
        call = EXACT[name](draw)
        threads = draw.choice((1, 2, 3))
        results: dict[str, list[Tensor]] = {}
        for backend in call.backends():
            with using_threads(threads):
                found = supported(call, backend)
            if found is not None:
                results[backend] = found
                attack.count("calls")
        expected = results["eager"]
        for backend, found in results.items():
            assert len(found) == len(expected)
            for number, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert same(a, b), describe(call, backend, number)

    attack.each(2 * CASES, case)


@pytest.mark.parametrize("name", CLOSE)
def test_backends_are_as_near_to_float64(name: str, attack: Any) -> None:
    def case(draw: random.Random) -> None:
        call = CLOSE[name](draw)
        plainest = call.backends()[0]
        truth = outputs_and_gradients(call.in_float64(), plainest)
        yardstick = outputs_and_gradients(call, plainest)
        for backend in call.backends():
            with using_threads(draw.choice((1, 2, 3))):
                found = supported(call, backend)
            if found is None:
                continue
            attack.count("calls")
            gradients_from = len(truth) - len(call.tensors)
            for number, results in enumerate(zip(found, yardstick, truth, strict=True)):
                terms = call.terms if number >= gradients_from else 0.0
                off = distance(*results, terms)
                assert near(*results, terms), (describe(call, backend, number), off)

    attack.each(CASES, case)


def near(found: Tensor, yardstick: Tensor, truth: Tensor, terms: float) -> bool:
    if found.dtype != yardstick.dtype or found.shape != truth.shape:
        return False
    if not found.is_floating_point():
        return torch.equal(found, truth)
    if not torch.equal(found.isfinite(), truth.isfinite()):
        return False
    off, allowed = distance(found, yardstick, truth, terms)
    return off <= allowed


def distance(found: Tensor, yardstick: Tensor, truth: Tensor, terms: float) -> tuple[float, float]:
    """Return the error of `found` and the largest allowed error.

    `terms` is the size of the terms of a sum, as terms may cancel. It is about one for gradients.
    """
    if not truth.numel() or not found.is_floating_point():
        return 0.0, 0.0
    off, plain = (greatest(x.double() - truth) for x in (found, yardstick))
    roundings = 64 if found.dtype == torch.float64 else 8
    rounding = torch.finfo(found.dtype).eps * max(greatest(truth), terms)
    return off, 4 * plain + roundings * rounding


def greatest(x: Tensor) -> float:
    return float(x.nan_to_num(0.0, 0.0, 0.0).abs().max())


def describe(call: Call, backend: str, number: int) -> str:
    tensors = [(tuple(x.shape), x.dtype) for x in call.tensors]
    return f"{backend}: result {number} of {tensors} with {call.settings}"


def test_a_sample_that_is_no_number_spoils_no_other(attack: Any) -> None:
    def case(draw: random.Random) -> None:
        name = draw.choice(("token_statistics", "causal_token_statistics"))
        call = CLOSE[name](draw)
        w, temperature, *_ = call.tensors
        settings = {
            "key_padding_mask": call.settings["key_padding_mask"],
            "return_membership": True,
        }
        bad = w.clone()
        bad[-1, :, draw.randrange(w.shape[2])] = draw.choice((float("nan"), float("inf")))
        for backend in ("eager", "cpu"):
            try:
                expected = call.function(w, temperature, **settings, backend=backend)
            except InputError:
                continue
            found = call.function(bad, temperature, **settings, backend=backend)
            for a, b in zip(found, expected, strict=True):
                assert same(a[:-1], b[:-1]), describe(call, backend, 0)

    attack.each(2 * CASES, case)


# Operators without backends, compared with their definition.


def test_butterfly_strides(attack: Any) -> None:
    def case(draw: random.Random) -> None:
        length = size(draw, 600)
        blocks = [d for d in range(2, length + 1) if length % d == 0] or [1]
        block = draw.choice(blocks)
        reached = torch.eye(length, dtype=torch.bool)
        for stride in ops.butterfly_strides(length, block):
            groups = ops.butterfly_split(reached, block, stride, 1)
            met = groups.any(2, keepdim=True).expand_as(groups)
            reached = ops.butterfly_merge(met, stride, 1)
        assert reached.all(), (length, block)

    attack.each(CASES, case)


def test_shift_steps(attack: Any) -> None:
    def case(draw: random.Random) -> None:
        kind = draw.choice(("none", "linear", "power", "head", "code_linear", "code_exp"))
        channels, layers = size(draw, 40), draw.randint(1, 5)
        tokens = size(draw, 2**16 + 1) if draw.random() < 0.7 else draw.randint(1, 2**31 - 1)
        heads = draw.choice([d for d in range(1, channels + 1) if channels % d == 0])
        layer, window = draw.randrange(layers), draw.randint(1, 9)
        settings = {"layer_index": layer, "num_layers": layers, "group_size": window}
        found = ops.shift_steps(kind, tokens, channels, heads=heads, **settings)
        expected = permutation_reference.shift_steps(
            kind, tokens, channels, layer, layers, window, heads
        )
        assert found.tolist() == expected, (kind, tokens, channels, settings, heads)

    attack.each(4 * CASES, case)


def test_interleave_columns(attack: Any) -> None:
    def case(draw: random.Random) -> None:
        heads, width, layers = draw.randint(1, 5), size(draw, 40), draw.randint(1, 9)
        layer, reverse = draw.randrange(layers), draw.random() < 0.5
        found = ops.interleave_columns(
            heads * width, layer, heads=heads, reverse=reverse, num_layers=layers
        )
        level = layers - 1 - layer if reverse else layer
        run = max(1, width // 2**level)
        assert found.tolist() == [c % width // run % 2 == 1 for c in range(heads * width)]

    attack.each(4 * CASES, case)


def test_gumbel_noise(attack: Any) -> None:
    def case(draw: random.Random) -> None:
        dtype = draw.choice((torch.float32, torch.float64, torch.bfloat16, torch.float16))
        shape = (size(draw, 9), 1000)
        seed = draw.randrange(2**60)
        first, second = (
            ops.gumbel_noise(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
            for _ in range(2)
        )
        assert first.dtype == dtype
        assert torch.equal(first, second)
        assert float(first.min()) > -2.7
        assert float(first.max()) < 13.9
        assert abs(float(first.double().mean()) - 0.5772) < 6 * 1.2826 / first.numel() ** 0.5

    attack.each(CASES, case)


def test_circular_convolutions(attack: Any) -> None:
    """The registered circular transforms of the mixers equal explicit sums."""

    def case(draw: random.Random) -> None:
        batch, length, channels = draw.randint(1, 3), size(draw, 40), size(draw, 9)
        period = draw.randint(length, 2 * length + 3)
        x, y = (numbers(draw, (batch, length, channels), torch.float64) for _ in range(2))
        kernel = numbers(draw, (channels, period), torch.float64)
        n, m = torch.arange(length)[:, None], torch.arange(length)
        weights = kernel[:, (n - m) % period]
        expected = torch.einsum("cnm,bmc->bnc", weights, x)
        torch.testing.assert_close(circular_convolve(x, kernel), expected, atol=1e-10, rtol=1e-9)
        products = torch.einsum("bnc,bmc->cnm", y, x)
        lags = torch.zeros(channels, period, dtype=torch.float64)
        lags.index_add_(1, ((n - m) % period).flatten(), products.flatten(1))
        found = circular_correlate(x, y, period)
        torch.testing.assert_close(found, lags, atol=1e-10, rtol=1e-9)

    attack.each(CASES, case)


def test_short_convolutions(attack: Any) -> None:
    """The registered convolution over a few tokens and its gradients equal explicit sums."""

    def case(draw: random.Random) -> None:
        batch, tokens, channels = draw.randint(1, 3), size(draw, 40), size(draw, 9)
        taps, outputs, first = draw.randint(1, 6), size(draw, 40), draw.randint(-50, 50)
        x, weight, bias = (
            numbers(draw, shape, torch.float64).requires_grad_()
            for shape in ((batch, tokens, channels), (taps, channels), (channels,))
        )
        grad = numbers(draw, (batch, outputs, channels), torch.float64)
        n, m = torch.arange(outputs)[:, None], torch.arange(tokens)
        read = torch.stack([m - n - first == tap for tap in range(taps)]).double()
        expected = torch.einsum("inm,ic,bmc->bnc", read, weight, x) + bias
        with using_threads(draw.choice((1, 2, 3))):
            found = short_convolution(x, weight, bias, first, outputs)
            found_gradients = torch.autograd.grad(found, (x, weight, bias), grad)
        gradients = torch.autograd.grad(expected, (x, weight, bias), grad)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)
        torch.testing.assert_close(found_gradients, gradients, atol=1e-10, rtol=1e-9)

    attack.each(CASES, case)


# Completeness.

PLAIN = {
    "BlockMap": "a value; block_mlp takes it",
    "StatisticsState": "a value; causal_token_statistics takes and gives it",
    "butterfly_strides": "test_butterfly_strides",
    "gumbel_noise": "test_gumbel_noise",
    "interleave_columns": "test_interleave_columns",
    "shift_steps": "test_shift_steps",
}
REGISTERED = {
    "circular_convolve": "test_circular_convolutions",
    "circular_correlate": "test_circular_convolutions",
    "power_shift_steps": "test_shift_steps",
    "short_convolution": "test_short_convolutions",
    "short_convolution_weights": "test_short_convolutions",
}


def test_no_public_operator_is_left_out() -> None:
    assert {*EXACT, *CLOSE, *PLAIN} == set(rm.ops.__all__)
    attacks = [getattr(attack_operators, name) for name in (*EXACT, *CLOSE)]
    assert len(set(attacks)) == len(attacks)


class Seen(TorchDispatchMode):
    """Record which registered operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        if space == "rifflemix":
            self.names.add(name.partition(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
def test_every_registered_operator_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks above reach every registered operator; Triton operators need a GPU."""
    everything = {name.partition("::") for name in torch._C._dispatch_get_all_op_names()}
    ours = {name.partition(".")[0] for space, _, name in everything if space == "rifflemix"}
    seen = Seen()
    for name, make in {**EXACT, **CLOSE}.items():
        for number in range(60):
            draw = random.Random(f"{name}/{number}")
            call = make(draw)
            if sum(x.numel() for x in call.tensors) > 2000:
                continue
            with seen:
                supported(call, "cpu")
            if seen.names >= {n for n in ours if not n.startswith("triton")} - set(REGISTERED):
                break
    assert seen.names | set(REGISTERED) == {n for n in ours if not n.startswith("triton")}
