"""Packed sequences: every variant equals each sequence alone; wrong bounds raise errors."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers.packed import segments_of

LENGTHS = (5, 1, 0, 12, 5, 24, 2, 1, 13, 0, 12)
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "tssa": [
        {"normalize": False, "bias": False},
        {"causal": True, "denominator_bias": False, "max_length": None},
        *({"causal": True, "renormalize_every": every} for every in (1, 3, "doubling")),
    ],
    "csp": [
        {"max_length": None},
        {"layout": "length", "num_groups": 2, "pad": True},
        {"num_groups": 3, "pad": True, "heads": 2},
        {
            "num_groups": 1,
            "order": "ascending",
            "shift": "power",
            "layer_index": 1,
            "num_layers": 2,
        },
        {"group_size": 4, "pad": True, "shift": "none"},
        {"group_size": 1, "shift": "code_exp", "num_layers": 3, "layer_index": 2},
        {"group_size": 8, "pad": True, "shift": list(range(-4, 12)), "inner_dim": 16},
        {"order": "ascending", "value_proj": False, "out_proj": False},
        {"causal": True, "group_size": 4, "reach": 7},
        {"causal": True, "shift": [3] * 8, "heads": 4},
    ],
    "sliceformer": [
        {"variant": "descending"},
        {"variant": "interleave", "heads": 2, "layer_index": 1, "num_layers": 2},
        {"variant": "max_exchange", "inner_dim": 12},
        {"causal": True, "window_size": 5},
    ],
    "linear": [{"normalize": False}, {"causal": True, "max_length": None}],
    "softmax": [{"inner_dim": 12, "bias": False}, {"causal": True}],
}
CASES = [(name, options) for name, variants in VARIANTS.items() for options in variants]


def bounds(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    return torch.tensor((0, *accumulate(lengths)))


def build(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> rm.TokenMixer:
    torch.manual_seed(3)
    mixer = rm.create_mixer(name, 8, **{"num_heads": 2, "max_length": 24, **options})
    return perturb(mixer, 0.1).to(dtype).eval()


def row(dtype: torch.dtype = torch.float64) -> Tensor:
    """Build tokens; every third token is rounded to create ties."""
    x = torch.randn(1, sum(LENGTHS), 8, dtype=dtype)
    x[:, ::3] = x[:, ::3].round()
    return x.requires_grad_()


def alone(mixer: rm.TokenMixer, x: Tensor) -> Tensor:
    """Compute the reference: one sequence after the other."""
    return torch.cat([mixer(part) for part in x.split(LENGTHS, 1) if part.shape[1]], 1)


def with_gradients(mixer: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(y)
    return y, *torch.autograd.grad((y * weights).sum(), [x, *mixer.parameters()])


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_packed_sequences_equal_separate_sequences(name: str, options: dict[str, Any]) -> None:
    mixer, x = build(name, **options), row()
    together = with_gradients(mixer, x, mixer(x, cu_seqlens=bounds()))
    torch.testing.assert_close(
        together, with_gradients(mixer, x, alone(mixer, x)), atol=1e-12, rtol=1e-10
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_and_autocast(name: str) -> None:
    x = row(torch.bfloat16)
    mixer = build(name, torch.bfloat16)
    torch.testing.assert_close(mixer(x, cu_seqlens=bounds()), alone(mixer, x))
    wide = build(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = wide(x.float(), cu_seqlens=bounds()), alone(wide, x.float())
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, atol=0.02, rtol=0.02)
    y.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_dropout_is_drawn_for_each_sequence() -> None:
    """Check that training separates sequences and a seed reproduces the result."""
    mixer = build("softmax", dropout=0.5).train()
    x = row().detach()
    runs = []
    for other in (x, torch.cat((x[:, :23] + 1, x[:, 23:]), 1)):
        torch.manual_seed(0)
        runs.append(mixer(other, cu_seqlens=bounds()))
    first, second = (run[:, 23:] for run in runs)
    assert torch.equal(first, second)
    assert not torch.equal(first, mixer.eval()(x, cu_seqlens=bounds())[:, 23:])


# With warnings as errors the compiler fails when it reads a tensor's `grad`.
@pytest.mark.filterwarnings("default:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", [pytest.param("csp", marks=pytest.mark.slow), "softmax"])
def test_packed_mixers_run_eagerly_in_compiled_models(name: str) -> None:
    """Check that packed mixers run without a graph for each length."""
    torch.compiler.reset()
    mixer, graphs = build(name), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(mixer, backend=backend)
    for lengths in ((3, 4), (5, 5, 1), (24,)):
        x = torch.randn(1, sum(lengths), 8, dtype=torch.float64, requires_grad=True)
        y, expected = (f(x, cu_seqlens=bounds(lengths)) for f in (compiled, mixer))
        torch.testing.assert_close(y, expected)
    assert not graphs


def test_packed_batch_may_have_any_strides() -> None:
    mixer, x = build("tssa"), row().detach()
    strided = x.mT.contiguous().mT
    assert not strided.is_contiguous()
    for at in (bounds(), bounds((sum(LENGTHS) // 5,) * 5)):
        torch.testing.assert_close(mixer(strided, cu_seqlens=at), mixer(x, cu_seqlens=at))


def seen_by(row: Tensor, lengths: tuple[int, ...], *, exact: bool) -> list[tuple[Any, Any]]:
    """Return (sequences, tokens) and padding of each batch; check the doubled output."""
    seen = []

    def note(together: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            assert not together[mask].any()
            assert torch.equal(mask, mask.cummax(1).values)
        seen.append((tuple(together.shape[:2]), 0 if mask is None else int(mask.sum())))
        return 2 * together[..., :3]

    mixed = segments_of(bounds(lengths), row, None).mix(note, row, exact=exact)
    assert torch.equal(mixed, 2 * row[..., :3])
    return seen


def test_sequences_of_similar_length_form_one_batch() -> None:
    """Check that many short sequences share one batch and are cheap."""
    x = row()
    assert seen_by(x, LENGTHS, exact=True) == [
        ((1, 24), 0), ((1, 13), 0), ((2, 12), 0), ((2, 5), 0), ((1, 2), 0), ((2, 1), 0)
    ]  # fmt: skip
    assert seen_by(x, LENGTHS, exact=False) == [((9, 24), 141)]
    assert seen_by(x, (25, 0, 25, 25), exact=False) == [((3, 25), 0)]
    assert seen_by(x, (30, 45), exact=True) == [((1, 30), 0), ((1, 45), 0)]
    short = (64, *[8] * 4, *[7] * 90)  # more padding than a separate call costs
    wide = torch.randn(1, sum(short), 4)
    assert seen_by(wide, short, exact=False) == [((5, 64), 224), ((90, 7), 0)]
    assert seen_by(wide, short, exact=True) == [((1, 64), 0), ((4, 8), 0), ((90, 7), 0)]


BAD_BOUNDS: dict[str, tuple[Any, str]] = {
    "no tensor": ([0, 75], r"int32\b.*int64\b.*\b1\b"),
    "floats": (torch.tensor([0.0, 75.0]), r"int32\b.*int64\b.*torch.float32\b"),
    "truths": (torch.tensor([False, True]), r"int32\b.*int64\b.*torch.bool"),
    "two ranks": (torch.tensor([[0, 75]]), r"\(1, 2\)"),
    "a number": (torch.tensor(75), r"\(\)"),
    "no sequence": (torch.tensor([0]), r"\(1,\)"),
    "nested": (
        torch.nested.nested_tensor([torch.tensor([0])], layout=torch.jagged),
        "got .*nested",
    ),
    "starts late": (torch.tensor([1, 24, 75]), r"\b0\b.*got 1\b"),
    "ends early": (
        torch.tensor([0, 24, 70]),
        r"\b75\b.*got 70\b",
    ),
    "ends late": (torch.tensor([0, 24, 76]), r"\b75\b.*got 76\b"),
    "decreases": (torch.tensor([0, 30, 24, 75]), r"got 24\b.*\b30\b"),
    "too long": (torch.tensor([0, 24, 49, 75]), r"max_length = 24.*got 26\b"),
    "elsewhere": (torch.tensor([0, 75], device="meta"), "CPU"),
}


@pytest.mark.parametrize(("given", "sentence"), BAD_BOUNDS.values(), ids=BAD_BOUNDS)
def test_bad_offsets_raise_one_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(rm.InputError, match=rf"^cu_seqlens: .*{sentence}") as error:
        build("tssa")(row(), cu_seqlens=given)
    assert "\n" not in str(error.value)


def test_incompatible_arguments_are_refused() -> None:
    mixer, x, at = build("softmax", causal=True), row().detach(), bounds()
    with pytest.raises(rm.InputError, match=r"^key_padding_mask: .*None.*cu_seqlens"):
        mixer(x, key_padding_mask=torch.zeros(1, 75, dtype=torch.bool), cu_seqlens=at)
    with pytest.raises(rm.InputError, match=r"^x: .*\(1, N, C\).*cu_seqlens"):
        mixer(x.view(3, 25, 8), cu_seqlens=at)
    jagged = torch.nested.nested_tensor([x[0]], layout=torch.jagged)
    with pytest.raises(rm.InputError, match=r"^x: .*x\.offsets\(\)"):
        mixer(jagged, cu_seqlens=at)
    with pytest.raises(rm.InputError, match=r"^cu_seqlens: .*None.*Butterfly"):
        rm.create_mixer("butterfly", 8)(x.float(), cu_seqlens=at)


def test_shapes_without_memory() -> None:
    """Check that bounds stay on the CPU for the meta device."""
    mixer = build("csp").to("meta")
    x = torch.empty(1, sum(LENGTHS), 8, dtype=torch.float64, device="meta")
    assert mixer(x, cu_seqlens=bounds()).shape == x.shape
    with pytest.raises(rm.InputError, match="cu_seqlens: "):
        mixer(x, cu_seqlens=bounds().to("meta"))


@pytest.mark.slow
def test_packed_lengths_cannot_be_exported() -> None:
    mixer, x = build("tssa", torch.float32), row(torch.float32).detach()
    with pytest.raises(rm.InputError, match=r"cu_seqlens: .*None"):
        torch.export.export(mixer, (x,), {"cu_seqlens": bounds()}, strict=False)
