"""Check that claims tested by analyses hold for right layers and fail for wrong layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from claims_modules import claims_module
from torch import Tensor, nn

import rifflemix as rm
import rifflemix.lab.analysis.kinds.rate
from rifflemix.lab.analysis import Subject, get_analysis, own_subject
from rifflemix.lab.analysis.kinds.collapse import collapse
from rifflemix.mixers.csp import CSP
from rifflemix.ops.permutation.arguments import Permuted

base, judges = claims_module("claims.base"), claims_module("claims.judges")
HOLDS, FAILS, DEPENDS = base.HOLDS, base.FAILS, base.DEPENDS
N, C = 16, 8


class Stack(nn.Module):
    """Apply mixers one after the other."""

    def __init__(self, mixers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(self, x: Tensor) -> Tensor:
        for mixer in self.mixers:
            x = mixer(x)
        return x


def subject(label: str, *mixers: nn.Module) -> Subject:
    model = Stack(mixers).double()
    return own_subject(model, [torch.randn(2, N, C, dtype=torch.float64)], label=label)


def layer(name: str, index: int = 0, count: int = 1, **options: Any) -> nn.Module:
    place = {"layer_index": index, "num_layers": count}
    return rm.create_mixer(name, C, num_heads=2, max_length=N, **place, **options)


def layers(name: str, count: int = 3, **options: Any) -> list[nn.Module]:
    return [layer(name, index, count, **options) for index in range(count)]


def verdict(kind: str, judge: Callable[[Any], Any], *subjects: Subject) -> str:
    return judge(get_analysis(kind).run(subjects, lambda *_: None).data).verdict


class Repeats(CSP):
    """CSP with the second token in the place of the first."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        y, index = super().permute(v, mask, with_index=True)
        keep = torch.arange(y.shape[1]).clamp_min(1)
        return y[:, keep], index[:, keep]


class Averages(CSP):
    """CSP that averages neighbors, so it does not permute."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        y, index = super().permute(v, mask, with_index=with_index)
        return (y + y.roll(1, 1)) / 2, index


def test_maps_of_ones_need_permutations() -> None:
    assert verdict("spectrum", judges.all_ones, subject("csp", layer("csp"))) == HOLDS
    assert verdict("spectrum", judges.all_ones, subject("csp", Repeats(C))) == FAILS
    assert verdict("spectrum", judges.all_ones, subject("csp", layer("softmax"))) == FAILS
    assert verdict("spectrum", judges.all_ones, subject("csp", layer("tssa"))) == FAILS


@pytest.mark.parametrize("label", ["csp", "shift", "sliceformer"])
def test_slow_decay_needs_all_layers_and_all_measures(label: str) -> None:
    judge = judges.slower_decay(label)
    identity, average = layers("identity", 2), layers("average", 2)
    names = (label, "softmax")
    right = [subject(n, *of) for n, of in zip(names, (identity, average), strict=True)]
    wrong = [subject(n, *of) for n, of in zip(names, (average, identity), strict=True)]
    assert verdict("spectrum", judge, *right) == HOLDS
    assert verdict("spectrum", judge, *wrong) == FAILS


def test_measures_that_disagree_give_no_verdict() -> None:
    """Use a higher effective rank with a lower s2/s1, as in a whole-sequence sort."""

    def model(effective: float, stable: float, second: float) -> list[dict[str, Any]]:
        measures = {
            "effective_rank": effective,
            "stable_rank": stable,
            "second_over_first": second,
        }
        return [{"before_projection": measures, "after_projection": {}}]

    data = {"models": {"csp": model(9.0, 1.2, 0.3), "softmax": model(7.0, 1.5, 0.5)}}
    assert judges.slower_decay("csp")(data).verdict == DEPENDS
    data["models"]["csp"] = model(9.0, 1.6, 0.6)
    assert judges.slower_decay("csp")(data).verdict == HOLDS
    data["models"]["csp"] += model(6.0, 1.4, 0.4)
    data["models"]["softmax"] *= 2
    assert judges.slower_decay("csp")(data).verdict == base.PART


def test_the_spectrum_of_a_claim_is_before_the_projection() -> None:
    """Check that an output projection of rank 1 would hide the rank of the permuted values."""
    csp, softmax = layer("csp"), layer("average")
    with torch.no_grad():
        csp.proj.weight.copy_(torch.ones(C, C))
        csp.proj.bias.zero_()
    subjects = subject("csp", csp), subject("softmax", softmax)
    assert verdict("spectrum", judges.slower_decay("csp"), *subjects) == HOLDS
    after = judges.slower_decay("csp", "after_projection")
    assert verdict("spectrum", after, *subjects) != HOLDS


def test_theorem_1_needs_permutations() -> None:
    assert verdict("collapse", judges.theorem_1, subject("csp", *layers("csp"))) == HOLDS
    for wrong in (Averages, Repeats):
        stack = subject("csp", *(wrong(C) for _ in range(3)))
        assert verdict("collapse", judges.theorem_1, stack) == FAILS


@pytest.mark.parametrize("stack", ["with norm", "mixers alone"])
def test_collapse_needs_one_stack_that_collapses_and_one_that_does_not(stack: str) -> None:
    judge = judges.collapses("softmax", "csp", (stack, stack))
    lost, kept = layers("average"), layers("identity")
    assert verdict("collapse", judge, subject("softmax", *lost), subject("csp", *kept)) == HOLDS
    assert verdict("collapse", judge, subject("softmax", *lost), subject("csp", *lost)) == FAILS
    both = subject("softmax", *kept), subject("csp", *kept)
    assert verdict("collapse", judge, *both) == base.PART, "softmax does not collapse"


def test_skips_must_keep_what_collapses_without_them() -> None:
    judge = judges.collapses("softmax", "softmax", ("with norm", "with norm and skip"))
    assert verdict("collapse", judge, subject("softmax", *layers("average", 2))) == HOLDS
    data = collapse([subject("softmax", *layers("average", 2))]).data
    stacks = data["models"]["softmax"]["stacks"]
    stacks["with norm and skip"] = stacks["with norm"]
    assert judge(data).verdict == FAILS


def test_low_risk_needs_every_measure_to_stay() -> None:
    judge = judges.low_risk
    assert verdict("collapse", judge, subject("sliceformer", *layers("identity"))) == HOLDS
    assert verdict("collapse", judge, subject("sliceformer", *layers("average"))) == FAILS
    deep = [rm.create_mixer("sliceformer", 128) for _ in range(6)]
    sorts = own_subject(Stack(deep), [torch.randn(1, 64, 128)], label="sliceformer")
    assert verdict("collapse", judge, sorts) == DEPENDS, "the residual stays, the ranks do not"


def test_tokens_must_meet_in_the_second_layer_and_not_before() -> None:
    for name, after, share in (("csp", 3, 0.995), ("butterfly", 2, 0.25)):
        judge = judges.connected(name, after, share)
        assert verdict("pattern", judge, subject(name, *layers(name))) == HOLDS
        assert verdict("pattern", judge, subject(name, *layers("softmax"))) == FAILS
    no_shift = subject("csp", *layers("csp", shift="none"))
    assert verdict("pattern", judges.connected("csp", 3, 0.995), no_shift) == FAILS
    equal = subject("butterfly", *(layer("butterfly", 0, 3) for _ in range(3)))
    assert verdict("pattern", judges.connected("butterfly", 2, 0.25), equal) == FAILS
    judge = judges.connected("token_parallel", 1, 0.0)
    assert verdict("pattern", judge, subject("token_parallel", *layers("token_parallel"))) == HOLDS
    assert verdict("pattern", judge, subject("token_parallel", *layers("local"))) == FAILS


def test_order_must_matter_for_csp_only() -> None:
    judge, right = judges.order_free, subject("sliceformer", layer("sliceformer"))
    shift, sort = layer("csp", group_size=1), layer("sliceformer")
    assert verdict("permutation", judge, right, subject("csp", shift)) == HOLDS
    wrong = subject("sliceformer", shift), subject("csp", shift)
    assert verdict("permutation", judge, *wrong) == FAILS
    blind = subject("sliceformer", sort), subject("csp", sort)
    assert verdict("permutation", judge, *blind) == FAILS, "the measure must see an order"


def noise_of(power: float) -> dict[str, Any]:
    tokens = [4, 16, 64, 256, 1024, 4096]
    noise = {"tokens": tokens, "deviation": [float(n) ** power for n in tokens]}
    curve = {str(n): float(n) ** power for n in (4, 16, 64)}
    return {"noise": noise, "models": {"softmax": [{"deviation": curve}]}}


def test_deviation_must_fall_faster_than_that_of_a_hard_choice() -> None:
    assert judges.noise_spread(noise_of(-1.0)).verdict == HOLDS
    assert judges.noise_spread(noise_of(-0.5)).verdict == FAILS, "one weight of 1"
    assert judges.noise_spread(noise_of(0.0)).verdict == FAILS


def test_weights_become_alike_only_relative_to_their_mean() -> None:
    assert judges.indistinguishable(noise_of(-1.0)).verdict == FAILS
    assert judges.indistinguishable(noise_of(-1.5)).verdict == HOLDS


def test_sums_must_approach_1_during_training() -> None:
    def data(*sums: float) -> dict[str, Any]:
        return {"training": {"softmax": [{"column_sums": [value]} for value in sums]}}

    assert judges.doubly_stochastic(data(0.3, 0.01)).verdict == HOLDS
    assert judges.doubly_stochastic(data(0.3, 0.1)).verdict == base.PART
    assert judges.doubly_stochastic(data(0.01, 0.04)).verdict == FAILS


def tssa(**keys: Sequence[float]) -> dict[str, Any]:
    rows = zip(*keys.values(), strict=True)
    return {"models": {"tssa": [dict(zip(keys, row, strict=True)) for row in rows]}}


def test_the_bound_must_fall_from_layer_to_layer_and_within_each() -> None:
    assert judges.bound_falls(tssa(bound=[3.0, 2.0, 1.0])).verdict == HOLDS
    assert judges.bound_falls(tssa(bound=[1.0, 2.0, 3.0])).verdict == FAILS
    lower, higher = tssa(bound=[2.0], bound_after=[1.0]), tssa(bound=[2.0], bound_after=[3.0])
    assert judges.operator_lowers(lower).verdict == HOLDS
    assert judges.operator_lowers(higher).verdict == FAILS


def test_a_bound_that_is_too_low_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = judges.bound_is_above
    assert verdict("rate", judge, subject("tssa", layer("tssa"))) == HOLDS
    right = rifflemix.lab.analysis.kinds.rate.variational_compression_rate
    monkeypatch.setattr(
        rifflemix.lab.analysis.kinds.rate,
        "variational_compression_rate",
        lambda *args: right(*args) / 3,
    )
    assert verdict("rate", judge, subject("tssa", layer("tssa"))) == FAILS


def test_heads_with_equal_bases_are_not_incoherent() -> None:
    fresh, equal = layer("tssa"), layer("tssa")
    with torch.no_grad():
        weight = torch.linalg.qr(torch.randn(C, C))[0]
        fresh.in_proj.weight.copy_(weight)
        equal.in_proj.weight.copy_(weight[:1].expand(C, C))
    assert verdict("coherence", judges.incoherent, subject("tssa", fresh)) == HOLDS
    assert verdict("coherence", judges.incoherent, subject("tssa", equal)) == FAILS


def test_other_counts_than_the_printed_ones_fail() -> None:
    judge = judges.printed_macs("model")

    def data(macs: float) -> dict[str, Any]:
        found = {"macs": macs, "printed_macs_millions": 5.0, "parameters": 1}
        return {"models": {"model": found}}

    assert judge(data(5.01e6)).verdict == HOLDS
    assert judge(data(5.1e6)).verdict == FAILS


def sorting(sums: Sequence[float], softness: Sequence[float]) -> dict[str, Any]:
    found = {
        "sums_from_1": dict(zip(("1", "5", "20"), sums, strict=True)),
        "softness": dict(zip(("0.25", "0.5", "1.0"), softness, strict=True)),
    }
    return {"models": {"sinkhorn": found}}


def test_iterations_must_balance_and_temperature_must_soften() -> None:
    right = sorting((0.5, 0.01, 0.001), (0.1, 0.3, 0.6))
    assert judges.balanced(right).verdict == HOLDS
    assert judges.harder(right).verdict == HOLDS
    ignored = sorting((0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
    assert judges.balanced(ignored).verdict == FAILS, "iterations are ignored"
    assert judges.harder(ignored).verdict == FAILS, "the temperature is ignored"
    assert judges.harder(sorting((0.5, 0.1, 0.01), (0.6, 0.3, 0.1))).verdict == FAILS
