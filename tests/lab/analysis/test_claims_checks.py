"""Check that claims hold for the mixers of rifflemix and fail for wrong mixers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from claims_modules import claims_module
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.analysis import own_subject
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.mixers.tssa import TSSA
from rifflemix.ops.permutation.arguments import Permuted

base = claims_module("claims.base")
checks, models = claims_module("claims.checks"), claims_module("claims.checks_models")
HOLDS, FAILS, PART, UNDECIDED = base.HOLDS, base.FAILS, base.PART, base.UNDECIDED


def other(**changes: Any) -> Any:
    """Build layers with options that replace the requested options."""
    return lambda name, *args, **options: rm.create_mixer(name, *args, **options | changes)


def test_pairs_give_every_channel_a_map_of_its_own() -> None:
    found = checks.heads()
    assert (found["tokens"], found["channels"]) == (64, 512)
    assert found["maps"]["shift"] == 64
    assert found["maps"]["shift_and_pairs"] == 512
    assert checks.own_maps(found).verdict == HOLDS
    assert checks.pairs_add_maps(found).verdict == HOLDS


@pytest.mark.parametrize(
    "wrong", [{"group_size": 1, "num_groups": None}, {"shift": "none", "order": "ascending"}]
)
def test_maps_of_wrong_layers_are_too_few_or_too_many(wrong: dict[str, Any]) -> None:
    found = checks.heads(other(**wrong), tokens=16, channels=64)
    assert checks.pairs_add_maps(found).verdict == FAILS
    if wrong.get("group_size") == 1:
        assert checks.own_maps(found).verdict == FAILS


def test_few_channels_do_not_show_that_pairs_add_maps() -> None:
    """Check C < N, because shifts alone then give every channel a different map."""
    assert checks.pairs_add_maps(checks.heads(tokens=64, channels=32)).verdict == FAILS


def test_maps_of_csp_are_optimal_and_an_ascending_sort_is_not() -> None:
    assert checks.optimal(checks.transport()).verdict == HOLDS
    wrong = checks.transport(other(order="ascending"))
    assert checks.optimal(wrong).verdict == FAILS
    assert wrong["largest_gap"] > 0.01


def test_soft_maps_converge_to_csp_and_not_to_an_ascending_sort() -> None:
    found = checks.entropic(size=2, iterations=3000)
    assert checks.converges(found).verdict == HOLDS
    wrong = checks.entropic(other(order="ascending"), size=2, iterations=3000)
    assert checks.converges(wrong).verdict == FAILS


class ShiftsAfterwards(CSP):
    """CSP that shifts the values after it sorts them."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        y, index = super().permute(v, mask, with_index=True)
        by = 0 if self.shift == "none" else 1
        return y.roll(by, 1), index.roll(by, 1)


@pytest.mark.slow
def test_the_shift_is_redundant_before_a_whole_sort_and_not_after_it() -> None:
    assert checks.shift_is_redundant(checks.redundant_shift()).verdict == HOLDS
    wrong = checks.redundant_shift(lambda name, dim, **options: ShiftsAfterwards(dim, **options))
    assert checks.shift_is_redundant(wrong).verdict == FAILS
    never = checks.redundant_shift(other(shift="none"))
    assert checks.shift_is_redundant(never).verdict == FAILS, "the measure must see a shift"


def test_max_exchange_moves_two_values_and_a_sort_moves_more() -> None:
    assert checks.only_the_largest(checks.exchange()).verdict == HOLDS
    for variant in ("ascending", "descending", "interleave"):
        assert checks.only_the_largest(checks.exchange(other(variant=variant))).verdict == FAILS


def vit(mixer: str) -> nn.Module:
    return rm.create_model("vit_cifar10", mixer=mixer, dim=32, num_layers=2, pool="mean")


def invariant(mixer: str) -> nn.Module:
    model = vit("softmax")
    model.positions = Untouched()
    return model


class Untouched(nn.Module):
    """Positional embedding that adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_whole_vit_is_invariant_only_without_positions_and_sorts() -> None:
    found = checks.whole_vit(vit)
    assert checks.whole_model_is_invariant(found).verdict == FAILS
    assert found["change"]["softmax"]["without positions"] < 1e-9, "the measure is sound"
    assert checks.whole_model_is_invariant(checks.whole_vit(invariant)).verdict == HOLDS
    no_sort = checks.whole_vit(lambda mixer: vit("softmax"))
    assert checks.whole_model_is_invariant(no_sort).verdict == PART


def test_equal_strides_do_not_mix_and_unequal_strides_do() -> None:
    assert checks.equal_strides_do_not_mix(checks.repeated_butterfly()).verdict == HOLDS
    for index in (0, 1):
        wrong = checks.repeated_butterfly(other(layer_index=index))
        assert checks.equal_strides_do_not_mix(wrong).verdict == FAILS
    dense = checks.repeated_butterfly(
        lambda name, dim, **options: rm.create_mixer("softmax", dim, **options)
    )
    assert checks.equal_strides_do_not_mix(dense).verdict == FAILS


@pytest.mark.slow
def test_parameters_of_csp_are_counted() -> None:
    found = models.csp_parameters()
    assert models.third_of_parameters(found).verdict == PART, "the output map is not counted"
    assert models.fewer_parameters(found).verdict == HOLDS
    wider = other(inner_dim=1024)

    def wrong(name: str, *args: Any, **options: Any) -> nn.Module:
        return (wider if name == "csp" else rm.create_mixer)(name, *args, **options)

    assert models.third_of_parameters(models.csp_parameters(wrong)).verdict == FAILS
    changed = copy.deepcopy(found)
    changed["models"]["cifar10"][0] = changed["models"]["cifar10"][1]
    assert models.fewer_parameters(changed).verdict == FAILS


def sizes(**tasks: dict[str, int]) -> dict[str, Any]:
    return {"tasks": tasks}


def test_one_larger_task_is_enough_to_contradict() -> None:
    fewer, more = {"ascending": 1, "softmax": 2, "local": 3}, {"ascending": 4, "softmax": 2}
    judge = models.fewer_than_baselines
    assert judge(sizes(text=fewer, image=fewer)).verdict == HOLDS
    assert judge(sizes(text=fewer, image=more | {"local": 3})).verdict == PART
    assert judge(sizes(text=more | {"local": 3})).verdict == FAILS


@pytest.mark.slow
def test_released_sizes_of_sliceformer_are_not_always_smaller() -> None:
    found = models.sliceformer_parameters()
    assert found["tasks"]["pathfinder"]["ascending"] == 2_160_322
    assert found["tasks"]["pathfinder"]["softmax"] == 26_530
    assert models.fewer_than_baselines(found).verdict == PART


class Ascends(TSSA):
    """TSSA with the opposite sign."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return -super().mix(x, key_padding_mask)


def test_a_tied_step_lowers_the_bound_and_the_opposite_does_not() -> None:
    assert models.step_lowers(models.tied_step()).verdict == HOLDS
    wrong = models.tied_step(lambda name, dim, **options: Ascends(dim, **options))
    assert models.step_lowers(wrong).verdict == FAILS


def test_groups_and_maps_are_compared_with_the_foreground() -> None:
    ink = np.array([[True, True, False, False]])
    found = {"images": 1, "group_difference": []}
    for likeliest, expected in (([[1, 1, 0, 0]], HOLDS), ([[1, 0, 1, 0]], FAILS)):
        difference = models.group_difference(np.array(likeliest), ink, 2)
        data = found | {"group_difference": [difference]}
        assert models.foreground_has_a_head(data).verdict == expected
    maps = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0]])
    areas = models.roc_areas(maps, np.repeat(ink, 3, 0))
    assert areas.tolist() == [1.0, 0.0, 0.5]


def test_one_better_baseline_contradicts_better_segmentation() -> None:
    def data(tssa: float, softmax: float) -> dict[str, Any]:
        noise = np.random.default_rng(0).normal(0, 0.01, (3, 50))
        means = {"tssa": tssa, "xca": 0.5, "softmax": softmax}
        areas = {m: (mean + n).tolist() for (m, mean), n in zip(means.items(), noise, strict=True)}
        return {"images": 50, "areas": areas}

    judge = models.segments_better
    assert judge(data(0.9, 0.7)).verdict == HOLDS
    assert judge(data(0.7, 0.9)).verdict == FAILS
    assert judge(data(0.7, 0.7)).verdict == UNDECIDED


class SortsNothing(nn.Module):
    """Sorter with the identity as its matrix: the sorted block is the token's own block."""

    def __init__(self, sorter: nn.Module) -> None:
        super().__init__()
        self.sorter, self.options = sorter, sorter.options

    def forward(self, *args: Any) -> Tensor:
        matrix: Tensor = self.sorter(*args)
        return torch.eye(matrix.shape[-1]).to(matrix).expand_as(matrix)


def test_weight_must_leave_the_own_block() -> None:
    torch.manual_seed(0)
    layer = Sinkhorn(16, num_heads=2, max_length=32, block_size=8)
    subject = own_subject(layer, [torch.randn(2, 32, 16)])
    assert models.quasi_global(models.weight_outside(subject)).verdict == HOLDS
    layer.sorter = SortsNothing(layer.sorter)
    wrong = models.weight_outside(subject)
    assert max(wrong["outside"]) < 1e-6
    assert models.quasi_global(wrong).verdict == FAILS


def costs(*ratios: tuple[float, float]) -> dict[str, Any]:
    rows = {
        str(64 * 4**n): {"dense_over_butterfly": {"seconds": seconds, "bytes": size}}
        for n, (seconds, size) in enumerate(ratios)
    }
    return {"tokens": rows}


def test_time_and_memory_must_both_fall_with_length() -> None:
    judge = models.cheaper_when_long
    assert judge(costs((1.0, 1.0), (2.0, 1.5), (4.0, 3.0))).verdict == HOLDS
    assert judge(costs((1.0, 1.0), (2.0, 1.0), (4.0, 1.0))).verdict == PART
    assert judge(costs((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))).verdict == FAILS


@pytest.mark.slow
def test_dense_attention_in_both_models_costs_the_same() -> None:
    def dense(name: str) -> nn.Module:
        row = name.replace("butterfly", "dense")
        return models.model_of(row, dim=16, num_layers=1, num_heads=2)

    found = models.butterfly_cost(dense, batch=1)
    for row in found["tokens"].values():
        ratio = row["dense_over_butterfly"]
        assert ratio["bytes"] == 1.0
        assert 0.3 < ratio["seconds"] < 3  # other processes change the time of a step


def test_other_parameters_than_the_printed_ones_are_named() -> None:
    rows = {n: {"parameters": 1000, "printed": 1001} for n in ("a", "b", "c")}
    assert models.printed_parameters({"rows": rows}).verdict == HOLDS
    rows["b"] = {"parameters": 1000, "printed": 1060}
    judged = models.printed_parameters({"rows": rows})
    assert judged.verdict == PART
    assert "not b 1,000" in judged.shows
    rows |= {"a": rows["b"], "c": rows["b"]}
    assert models.printed_parameters({"rows": rows}).verdict == FAILS
