"""Invalid calls raise InputError or give the right values, but never an error of torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix import ops
from rifflemix.errors import InputError
from rifflemix.models.language.generation import generate
from rifflemix.models.official import load_official

STEPS = ops.shift_steps("linear", 8, 4)
TEMPERATURE = torch.ones(2)


def heads(x: Tensor) -> Tensor:
    """Reshape (B, 8, 4) to (B, 2, 8, 2)."""
    return x.unflatten(2, (2, 2)).transpose(1, 2)


def matrices(x: Tensor) -> Tensor:
    """Reshape (B, 8, 4) to (B, 4, 4)."""
    return x[:, :4]


def sorted_attention(x: Tensor, backend: str, **settings: Any) -> Tensor:
    """Apply Sinkhorn self-attention to (B, 8, 4) in blocks of four."""
    qkv = heads(x)
    sort = qkv[:, :, :2]
    return ops.sinkhorn_attention(qkv, qkv, qkv, sort, 4, backend=backend, **settings)


Call = Callable[[Tensor, str], Tensor]
CALLS: dict[str, Call] = {
    "circular_shift": lambda x, b: ops.circular_shift(x, STEPS, backend=b),
    "group_sort": lambda x, b: ops.group_sort(x, 4, backend=b),
    "channel_permute": lambda x, b: ops.channel_permute(x, STEPS, 4, backend=b),
    "max_exchange": lambda x, b: ops.max_exchange(x, backend=b),
    "token_statistics": lambda x, b: ops.token_statistics(heads(x), TEMPERATURE, backend=b),
    "causal_token_statistics": lambda x, b: ops.causal_token_statistics(
        heads(x), TEMPERATURE, backend=b
    ),
    "linear_recurrence": lambda x, b: ops.linear_recurrence(
        *[heads(x)] * 3, log_decay=torch.full((len(x), 2, 8), -0.5), backend=b
    ),
    "pool_blocks": lambda x, b: ops.pool_blocks(x, 4, backend=b),
    "sinkhorn": lambda x, b: ops.sinkhorn(matrices(x), 3, backend=b),
    "causal sinkhorn": lambda x, b: ops.sinkhorn(matrices(x), 3, causal=True, backend=b),
    "top_k_blocks": lambda x, b: ops.top_k_blocks(matrices(x), 2, backend=b),
    "sinkhorn_attention": lambda x, b: sorted_attention(x, b),
    "causal sinkhorn_attention": lambda x, b: sorted_attention(x, b, causal=True),
    "sinkhorn_attention of sums": lambda x, b: sorted_attention(x, b, combine="sum_logits"),
    "causal_shift": lambda x, b: ops.causal_shift(x, STEPS, backend=b),
    "rank_filter": lambda x, b: ops.rank_filter(x, torch.tensor([0, 1, 2, 0]), 3, backend=b),
}
PLAIN = (
    "pool_blocks", "causal sinkhorn", "top_k_blocks",
    "causal sinkhorn_attention", "sinkhorn_attention of sums",
)  # fmt: skip
FORMS = [
    pytest.param(call, backend, id=f"{name}-{backend}")
    for name, call in CALLS.items()
    for backend in ("reference", "eager", "cpu", "auto")
    if backend != "cpu" or name not in PLAIN
]


def supported(call: Call, x: Tensor, backend: str) -> Tensor:
    try:
        return call(x, backend)
    except InputError as error:
        if "backend: expected" not in str(error):
            raise
        pytest.skip("needs the compiled kernels")


@pytest.mark.parametrize(("call", "backend"), FORMS)
def test_negated_views(call: Call, backend: str) -> None:
    x = torch.randn(2, 8, 4)
    negated = torch._neg_view(-x)
    assert negated.is_neg()
    assert torch.equal(supported(call, negated, backend), call(x, backend))


@pytest.mark.parametrize(("call", "backend"), FORMS)
def test_empty_batches(call: Call, backend: str) -> None:
    whole = call(torch.randn(2, 8, 4), "eager")
    y = supported(call, torch.zeros(0, 8, 4, requires_grad=True), backend)
    assert y.shape == (0, *whole.shape[1:])
    assert y.dtype == whole.dtype
    if backend != "reference":
        y.sum().backward()


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "eager"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_floats_of_8_bits(call: Call, backend: str, dtype: torch.dtype) -> None:
    """8-bit floats raise InputError, because torch stores them but does not compute with them."""
    with pytest.raises(InputError, match=r"^\w+: .*, got torch.float8"):
        call(torch.randn(2, 8, 4).to(dtype), backend)


EIGHT = torch.ones(2).to(torch.float8_e5m2)
IN_EIGHT_BITS: dict[str, Callable[[], object]] = {
    "temperature": lambda: ops.token_statistics(torch.randn(2, 2, 8, 2), EIGHT),
    "denominator_bias": lambda: ops.causal_token_statistics(
        torch.randn(2, 2, 8, 2), TEMPERATURE, torch.ones(2, 8).to(EIGHT.dtype)
    ),
    "x": lambda: ops.dropout(EIGHT, 0.5),
    "weight": lambda: ops.block_linear(torch.randn(3, 4), torch.ones(2, 2, 2).to(EIGHT.dtype)),
    "noise": lambda: ops.gumbel_sinkhorn(
        torch.randn(2, 2), 3, noise=torch.ones(2, 2).to(EIGHT.dtype)
    ),
    "mask": lambda: ops.dropout_attention(
        *torch.randn(3, 1, 1, 2, 2), mask=torch.ones(2, 2).to(EIGHT.dtype), dropout_p=0.5
    ),
    "dtype": lambda: ops.gumbel_noise((2, 2), dtype=EIGHT.dtype),
}


@pytest.mark.parametrize("name", IN_EIGHT_BITS)
def test_settings_of_8_bits(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        IN_EIGHT_BITS[name]()


@pytest.mark.parametrize("name", rm.list_mixers())
def test_mixers_refuse_floats_of_8_bits(name: str) -> None:
    causal = rm.mixer_card(name).streaming
    mixer = rm.create_mixer(name, 32, num_heads=4, max_length=64, causal=causal)
    with pytest.raises(InputError, match=r"^x: "):
        mixer(torch.ones(2, 8, 32).to(EIGHT.dtype))
    if causal:
        with pytest.raises(InputError, match=r"^x_t: "):
            mixer.step(torch.ones(2, 32).to(EIGHT.dtype), mixer.init_state(2))
        with pytest.raises(InputError, match=r"^dtype: "):
            mixer.init_state(2, dtype=EIGHT.dtype)


def test_empty_states() -> None:
    y, state = ops.causal_token_statistics(
        torch.zeros(0, 2, 8, 2), TEMPERATURE, return_state=True, backend="reference"
    )
    assert y.shape == (0, 2, 8, 2)
    wanted = ops.StatisticsState.zeros(0, 2, 2)
    assert [field.shape for field in state] == [field.shape for field in wanted]


SPARSE: dict[str, Callable[[Tensor], object]] = {
    "channel_permute": lambda x: ops.channel_permute(x, STEPS, 4),
    "group_sort": lambda x: ops.group_sort(x, 4),
    "max_exchange": lambda x: ops.max_exchange(x),
    "token_statistics": lambda x: ops.token_statistics(
        heads(x.to_dense()).to_sparse(), TEMPERATURE
    ),
    "pool_blocks": lambda x: ops.pool_blocks(x, 4),
    "sinkhorn": lambda x: ops.sinkhorn(matrices(x.to_dense()).to_sparse(), 3),
    "mixer": lambda x: rm.create_mixer("csp", 4)(x),
}


@pytest.mark.parametrize("call", SPARSE.values(), ids=SPARSE.keys())
def test_sparse_tensors(call: Callable[[Tensor], object]) -> None:
    with pytest.raises(InputError, match=r": .*got .*torch\.sparse_coo"):
        call(torch.randn(2, 8, 4).to_sparse())


SETTINGS: dict[str, Callable[[Tensor, Callable[[Tensor], Tensor]], object]] = {
    "key_padding_mask": lambda x, to: ops.group_sort(x, 4, key_padding_mask=to(x[:, :, 0] > 0)),
    "steps": lambda x, to: ops.circular_shift(x, to(STEPS)),
    "ranks": lambda x, to: ops.rank_filter(x, to(STEPS), 16),
    "descending": lambda x, to: ops.group_sort(x, 4, order=None, descending=to(x[0, 0] > 0)),
    "temperature": lambda x, to: ops.token_statistics(heads(x), to(TEMPERATURE)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", ["sparse", "nested"])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_given_as_tensors_of_other_layouts(name: str, layout: str) -> None:
    def to(x: Tensor) -> Tensor:
        if layout == "sparse":
            return x.to_sparse()
        return torch.nested.as_nested_tensor(list(x.unsqueeze(-1).unbind()))

    with pytest.raises(InputError, match=f"^{name}:"):
        SETTINGS[name](torch.randn(2, 8, 4), to)


def test_arguments_of_other_types() -> None:
    w = torch.randn(2, 2, 8, 2)
    arguments: Any
    for arguments in ({"normalize": "yes"}, {"normalize": 1}, {"return_membership": "no"}):
        with pytest.raises(InputError, match=f"{next(iter(arguments))}: .*True.*False"):
            ops.token_statistics(w, TEMPERATURE, **arguments)


FLAGS: dict[str, Callable[[Any], object]] = {
    "group_sort": lambda flag: ops.group_sort(torch.randn(2, 8, 4), 4, return_indices=flag),
    "pool_blocks": lambda flag: ops.pool_blocks(torch.randn(2, 8, 4), 4, causal=flag),
    "block_scores": lambda flag: ops.block_scores(*torch.randn(2, 2, 2, 8, 2), 4, shared=flag),
    "sinkhorn": lambda flag: ops.sinkhorn(torch.randn(4, 4), 3, causal=flag),
    "gumbel_sinkhorn": lambda flag: ops.gumbel_sinkhorn(torch.randn(4, 4), 3, final_row_norm=flag),
    "top_k_blocks": lambda flag: ops.top_k_blocks(torch.randn(4, 4), 2, causal=flag),
    "sinkhorn_attention": lambda flag: ops.sinkhorn_attention(
        *torch.randn(3, 1, 1, 8, 2), torch.rand(1, 1, 4, 4), 2, mixture=flag
    ),
}


@pytest.mark.parametrize("call", FLAGS.values(), ids=FLAGS.keys())
def test_flags_that_are_not_bools_are_refused(call: Callable[[Any], object]) -> None:
    for flag in (torch.tensor([]), torch.ones(2), "yes", None):
        with pytest.raises(InputError, match=r"^\w+: .*True.*False"):
            call(flag)


@pytest.mark.parametrize("backend", [np.array([]), np.array(["a", "b"]), torch.ones(2), None])
def test_invalid_backends_are_refused(backend: Any) -> None:
    with pytest.raises(InputError, match="backend:"):
        ops.max_exchange(torch.randn(2, 8, 4), backend=backend)


def test_groups_of_sparse_tensors() -> None:
    sparse = torch.randn(2, 8, 4).to_sparse()
    for call in (lambda: ops.butterfly_split(sparse, 2, 2), lambda: ops.butterfly_merge(sparse, 2)):
        with pytest.raises(InputError, match="dense"):
            call()


def test_error_messages_are_one_line() -> None:
    """Messages stay one line for tensors with many lines and strings of millions of characters."""
    for value in (torch.randn(3, 8, 4).to_sparse(), torch.randn(50, 50), "x\n" * 10**6):
        for find in (rm.create_model, rm.mixer_card):
            with pytest.raises(InputError) as error:
                find(value)  # type: ignore[arg-type]
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 5000


@pytest.mark.parametrize("kind", ["linear", "power", "head", "code_linear", "code_exp", "none"])
@pytest.mark.parametrize("sizes", [(10**40, 4), (4, 10**40), (2**31, 4), (4, 2**31)])
def test_steps_of_sizes_out_of_range(kind: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"\b1\b.*\b2147483647\b"):
        ops.shift_steps(kind, *sizes)
    for name in ("num_layers", "group_size"):
        with pytest.raises(InputError, match=name):
            ops.shift_steps(kind, 8, 4, **{name: 10**40})


def test_steps_of_many_tokens() -> None:
    for kind in ("linear", "power", "head", "code_linear", "code_exp"):
        steps = ops.shift_steps(kind, 2**31 - 1, 4, num_layers=2)
        assert 0 <= int(steps.min()) <= int(steps.max()) < 2**31 - 1


# Models.


@pytest.mark.parametrize("level_scale", [None, (0.5, 0.5)])
def test_ids_outside_the_vocabulary_of_an_encoder(level_scale: Any) -> None:
    model = rm.create_model(
        "encoder", mixer="average", dim=8, num_layers=1, num_heads=1, vocab_size=5, max_length=4,
        num_classes=2, level_scale=level_scale,
    )  # fmt: skip
    for ids, got in (([[0, 5]], 5), ([[0, -1]], -1), ([[2**62, 0]], 2**62)):
        with pytest.raises(InputError, match=rf"inputs: .*\b0\b.*\b4\b.*got {got}"):
            model(torch.tensor(ids))
    assert model(torch.tensor([[0, 4]])).shape == (1, 2)


def small_gpt() -> Any:
    settings = {"dim": 8, "num_layers": 1, "num_heads": 1, "vocab_size": 5, "max_length": 6}
    return rm.create_model("gpt", mixer="softmax", **settings).eval()


def test_ids_outside_the_vocabulary_of_a_language_model() -> None:
    model = small_gpt()
    with pytest.raises(InputError, match=r"tokens: .*\b0\b.*\b4\b.*got 5\b"):
        model(torch.tensor([[5]]))
    with pytest.raises(InputError, match=r"tokens: .*\b0\b.*\b4\b.*got -1\b"):
        model.step(torch.tensor([-1]), model.init_state(1))


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-38, 1e-30])
def test_temperatures_next_to_zero(temperature: float) -> None:
    model, prompt = small_gpt(), torch.tensor([[1, 2]])
    greedy = generate(model, prompt, 3, temperature=0)
    assert torch.equal(generate(model, prompt, 3, temperature=temperature), greedy)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_official_weights_that_are_quantised() -> None:
    model = rm.create_model("tost_tiny_16", num_layers=1)
    weight = torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)
    with pytest.raises(InputError, match="state_dict: "):
        load_official(model, {"norm.weight": weight})


@pytest.mark.parametrize("name", [["csp"], {"a": 1}, 5, None])
def test_invalid_names_are_refused(name: Any) -> None:
    for find in (rm.create_mixer, rm.create_model):
        with pytest.raises(InputError, match=f"(mixer|model) {re.escape(repr(name))}"):
            find(name, **({"dim": 8} if find is rm.create_mixer else {}))
