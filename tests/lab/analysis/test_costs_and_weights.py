"""Tests of costs, spreads of weights and sorting matrices against closed forms."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.analysis import View, analyze, find_subjects, own_subject, trace
from rifflemix.lab.analysis.kinds.macs import costs_of
from rifflemix.lab.analysis.kinds.sinkhorn import sort_matrix, sorting_of
from rifflemix.lab.analysis.kinds.softmax_spread import (
    layer_spreads,
    lengths_up_to,
    softmax_of_noise,
    spread_of,
    sums_of,
)
from rifflemix.models.macs import multiply_accumulates

N, C, H = 8, 8, 2


def test_costs_equal_a_worked_example() -> None:
    """Count 4 N C^2 for projections, 2 N^2 C for products, N C for the norm, and the head."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(C)
            self.layers = nn.ModuleList([rm.create_mixer("softmax", C, num_heads=H)] * 2)
            self.head = nn.Linear(C, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            for layer in self.layers:
                x = layer(x)
            y: Tensor = self.head(x.mean(1))
            return y @ y.T  # outside the parts: 3 products for one sample

    model = Model().train()
    parts, whole = costs_of(own_subject(model, [torch.randn(4, N, C)]))
    shared = 2 * (4 * N * C * C + 2 * N * N * C)  # one layer in two places, called twice
    found = {part.name: part.macs for part in parts}
    assert found["norm"] == N * C
    assert found["head"] == 3 * C
    assert found["layers.0"] == shared
    assert whole.macs == shared + N * C + 3 * C + 3
    assert whole.parameters == sum(p.numel() for p in model.parameters())
    assert sum(part.parameters for part in parts) == whole.parameters
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("nested", [False, True])
def test_layers_of_torch_cost_the_same_in_evaluation_mode(nested: bool) -> None:
    """Check evaluation mode, because torch may then run an encoder layer as one operator."""
    layer = nn.TransformerEncoderLayer(C, H, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(1, N, C), torch.tensor([[False] * 5 + [True] * 3])
    one = 4 * N * C * C + 2 * N * N * C + 2 * N * C * 16 + 2 * N * C
    batches = [{"src": x, "src_key_padding_mask": padding}]
    parts, whole = costs_of(own_subject(model, batches))
    assert {part.macs for part in parts} == {one, 0}
    assert whole.macs == 2 * one
    assert multiply_accumulates(model, x) == 2 * one


@pytest.mark.parametrize(
    "name",
    ["mlp_mixer_butterfly_mlp_e1", pytest.param("patch_only_cifar10_l7", marks=pytest.mark.slow)],
)
def test_printed_costs(name: str) -> None:
    (subject,) = find_subjects(name)
    finding = analyze("macs", subject)
    costs, card = finding.data["models"][name], rm.models.model_card(name)
    assert f"{costs['printed_macs_millions']:g}" == f"{float(card.printed_macs[:-2]):g}"
    assert costs["macs"] / 1e6 == pytest.approx(costs["printed_macs_millions"], rel=2e-3)
    assert re.search(rf"\b{card.printed_macs}\b.*\b{card.printed}\b", finding.summary[0])


def test_costs_of_another_size_are_not_compared_with_the_paper() -> None:
    (subject,) = find_subjects("mlp_mixer_dense_e1", View(samples=1, settings={"num_layers": 1}))
    finding = analyze("macs", subject)
    assert finding.data["models"]["mlp_mixer_dense_e1"]["printed_macs_millions"] is None
    printed = rm.models.model_card("mlp_mixer_dense_e1").printed_macs
    assert str(printed) not in finding.summary[0]


def test_spread_and_sums_by_numpy() -> None:
    weights = torch.rand(2, H, N, N, dtype=torch.float64)
    mask = torch.tensor([[False] * N, [False, True] + [False] * 5 + [True]])
    spread, (rows, columns) = spread_of(weights, mask), sums_of(weights, mask)
    for sample in range(2):
        there = ~mask[sample].numpy()
        valid = weights[sample].numpy()[:, there][:, :, there]
        assert float(spread[sample]) == pytest.approx(valid.std(-1).mean())
        assert float(rows[sample]) == pytest.approx(np.abs(valid.sum(-1) - 1).mean())
        assert float(columns[sample]) == pytest.approx(np.abs(valid.sum(-2) - 1).mean())


def test_equal_weights_have_zero_spread_and_permutations_maximal_spread() -> None:
    equal, permutation = torch.full((1, 1, 4, 4), 0.25), torch.eye(4).flip(0)[None, None]
    assert spread_of(equal).tolist() == [0.0]
    assert spread_of(permutation).tolist() == pytest.approx([np.sqrt(0.25 - 1 / 16)])
    for part in (*sums_of(equal), *sums_of(permutation)):
        assert part.tolist() == pytest.approx([0.0])


def test_softmax_of_noise_falls_as_one_over_n() -> None:
    """For large n the weights are e^a / (n e^(1/2)), with deviation sqrt(e - 1) / n."""
    (value,) = softmax_of_noise([4096])
    assert value * 4096 == pytest.approx(np.sqrt(np.e - 1), rel=0.02)
    assert lengths_up_to(10) == [4, 8, 10]
    assert lengths_up_to(4) == [4]


def test_spreads_of_a_layer_in_shorter_inputs() -> None:
    layer: Any = rm.create_mixer("softmax", C, num_heads=H)
    with torch.no_grad():
        layer.qkv.weight.zero_()  # all scores equal
    (found,) = layer_spreads(own_subject(layer, [torch.randn(2, N, C)]))
    assert set(found.spread) == {4, 8}
    assert all(value == pytest.approx(0.0, abs=1e-7) for v in found.spread.values() for value in v)
    assert found.columns == pytest.approx([0.0, 0.0], abs=1e-6)
    with pytest.raises(InputError, match=r"^TSSA: .*weights"):
        layer_spreads(own_subject(rm.create_mixer("tssa", C), [torch.randn(2, N, C)]))


def sorted_blocks(**options: Any) -> Any:
    mixer: Any = rm.create_mixer(
        "sinkhorn", C, num_heads=H, max_length=N, block_size=2, **options
    ).double()
    with torch.no_grad():
        for parameter in mixer.sorter.parameters():
            parameter.normal_()
    return own_subject(mixer, [torch.randn(2, N, C, dtype=torch.float64)])


def test_sort_matrices_by_sinkhorns_iteration() -> None:
    subject = sorted_blocks()
    ((call,),) = trace(subject.model, subject.batches)
    before = call.module.sorter.options
    scores = sort_matrix(call, num_iterations=0, temperature=1.0).log()
    found = sort_matrix(call, num_iterations=3, temperature=0.5)
    expected = np.exp(scores.detach().numpy() / 0.5)
    for _ in range(3):
        expected /= expected.sum(-1, keepdims=True)
        expected /= expected.sum(-2, keepdims=True)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert call.module.sorter.options is before
    assert not call.module.sorter._forward_hooks


def test_sharp_scores_do_not_overflow() -> None:
    """Before the first iteration a matrix contains exponentials; float32 overflows above e^88."""
    subject = sorted_blocks()
    with torch.no_grad():
        for parameter in subject.model.sorter.parameters():
            parameter.mul_(30)
    found = sorting_of(
        replace(subject, model=subject.model.float(), batches=[b.float() for b in subject.batches])
    )
    assert found.error[0] > 1e38
    assert all(np.isfinite(value) for value in found.error.values())


def test_iterations_balance_and_low_temperatures_harden() -> None:
    found = sorting_of(sorted_blocks(gumbel="always"))
    assert found.error[20] < found.error[2] < found.error[0]
    assert found.error[20] < 0.05
    softness = list(found.softness.values())
    assert softness == sorted(softness)
    assert (found.temperature, found.iterations) == (0.75, 8)
    for options in ({"causal": True}, {"top_k": 1}, {"sortcut": 1}):
        with pytest.raises(InputError, match=r"^Sinkhorn: .*top_k.*got none"):
            sorting_of(sorted_blocks(**options))


@pytest.mark.parametrize("kind", ["macs", "softmax-spread", "sinkhorn"])
def test_findings_have_complete_rows(kind: str) -> None:
    settings = {"in_channels": 3, "max_length": N, "dim": C, "num_layers": 2, "mixer": "sinkhorn"}
    model = rm.create_model("encoder", **settings, mixer_options={"block_size": 2})
    finding = analyze(kind, model, [torch.randn(2, N, 3)])
    assert finding.rows
    assert all(len(row) == len(finding.headers) for row in finding.rows)
