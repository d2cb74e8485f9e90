"""Tests of the three benchmarks on very small operators, layers and models."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.bench import layers, models, ops, scaling
from rifflemix.lab.bench.layers import BACKBONES
from rifflemix.lab.bench.plots import scaling_plot
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.bench.tables import bench_tables
from rifflemix.mixers import list_mixers, mixer_card
from rifflemix.ops.permutation import eager

QUICK = Settings(repeats=1, max_seconds=20.0)
FEW = ["softmax", "csp", "sinkhorn", "tssa"]
MIXERS = [
    pytest.param(FEW, id="few"),
    pytest.param(None, id="every", marks=pytest.mark.slow),
]
Measured = tuple[list[str], dict[str, Any]]


def statuses(result: dict[str, Any]) -> dict[tuple[str, str | None], tuple[str, str]]:
    return {(row["name"], row["backend"]): (row["status"], row["note"]) for row in result["rows"]}


@pytest.fixture(scope="module")
def ops_result() -> dict[str, Any]:
    return ops.run((Shape(1, 64, 16, 2),), QUICK)


@pytest.mark.slow
def test_every_operator_passes_its_check_and_is_measured(ops_result: dict[str, Any]) -> None:
    json.dumps(ops_result, allow_nan=False)
    assert set(statuses(ops_result).values()) == {("measured", "")}
    assert {row["name"] for row in ops_result["rows"]} == {op.name for op in ops.OPERATORS}
    for row in ops_result["rows"]:
        for name in ("forward", "forward_backward"):
            assert row["passes"][name]["p50"] > 0
            assert row["passes"][name]["ratios"].keys() >= {ops.COPY, ops.ATTENTION, ops.SORT}
        assert row["passes"]["forward_backward"]["peak_memory_bytes"] > 0


def test_operators_are_checked_against_reference_and_eager_in_float64(
    ops_result: dict[str, Any],
) -> None:
    for row in ops_result["rows"]:
        against = [check["against"] for check in row["gate"]]
        ours = row["backend"] is not None
        assert against == (["reference, float64", "eager, float64"] if ours else [])


def test_copy_baseline_has_ratio_one(ops_result: dict[str, Any]) -> None:
    copy = next(row for row in ops_result["rows"] if row["name"] == ops.COPY)
    assert copy["passes"]["forward"]["ratios"][ops.COPY] == 1.0
    assert copy["passes"]["forward"]["peak_memory_bytes"] == 64 * 16 * 4


@pytest.mark.slow
def test_lengths_that_do_not_divide_are_skipped() -> None:
    found = statuses(ops.run((Shape(1, 25, 16, 2),), QUICK))
    left_out = {name for (name, _), (status, _) in found.items() if status == "left out"}
    assert left_out == {"group_sort, G=2", "group_sort, G=64", "channel_permute, G=2"}
    assert re.search(r"\b2 tokens", found["group_sort, G=2", "eager"][1])
    assert {status for status, _ in found.values()} == {"measured", "left out"}


@pytest.mark.slow
def test_operators_in_bfloat16() -> None:
    result = ops.run((Shape(1, 64, 16, 2),), Settings("bfloat16", repeats=1))
    assert set(statuses(result).values()) == {("measured", "")}


def test_a_wrong_operator_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, *arguments: Any) -> Any:
        y, index = right(x, *arguments)
        return (y.flip(2) if x.dtype == torch.float32 else y), index

    right = eager.max_exchange
    monkeypatch.setattr(eager, "max_exchange", wrong)
    few = [op for op in ops.OPERATORS if op.name in (ops.COPY, "max_exchange")]
    monkeypatch.setattr(ops, "OPERATORS", few)
    row = next(
        row
        for row in ops.run((Shape(1, 64, 16, 2),), QUICK)["rows"]
        if (row["name"], row["backend"]) == ("max_exchange", "eager")
    )
    assert row["status"] == "failed"
    assert "reference, float64" in row["note"]
    assert row["passes"] == {}


@pytest.fixture(scope="module", params=MIXERS)
def scaled(request: pytest.FixtureRequest) -> Measured:
    result = scaling.run((64, 16, 48, 33), dim=16, heads=2, mixers=request.param, settings=QUICK)
    return request.param or list_mixers(), result


def test_every_mixer_is_measured_at_every_length(scaled: Measured) -> None:
    mixers, result = scaled
    json.dumps(result, allow_nan=False)
    expected = [(n, name) for n in (16, 33, 48, 64) for name in (layers.PROJECTIONS, *mixers)]
    assert [(row["shape"]["tokens"], row["name"]) for row in result["rows"]] == expected
    assert set(statuses(result).values()) == {("measured", "")}


def test_layers_are_checked(scaled: Measured) -> None:
    for row in scaled[1]["rows"]:
        against = [check["against"] for check in row["gate"]]
        assert against == (
            []
            if row["name"] == layers.PROJECTIONS
            else ["eager operators", "eager operators, float64"]
        )


def test_growth_states_claims_and_crossovers(scaled: Measured) -> None:
    mixers, result = scaled
    growth = {(entry["name"], entry["pass"]): entry for entry in result["growth"]}
    assert len(growth) == 2 * (1 + len(mixers))
    for (name, _), entry in growth.items():
        assert entry["fit"]["points"] == 3  # from 32, the middle of 16 to 64 on a logarithmic scale
        if name in mixers:
            assert entry["claimed_exponent"] == mixer_card(name).cost_exponent
            assert entry["contradicts_claim"] in (True, False)
        has_crossover = name not in (layers.SOFTMAX, layers.PROJECTIONS)
        assert (entry["crossover"] is not None) is has_crossover


@pytest.mark.parametrize("mixers", MIXERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_layers_in_other_types(dtype: str, mixers: list[str] | None) -> None:
    settings = Settings(dtype, repeats=1)
    result = scaling.run((32,), dim=16, heads=2, mixers=mixers, settings=settings)
    assert set(statuses(result).values()) == {("measured", "")}
    assert all(entry["fit"] is None for entry in result["growth"])


def test_softmax_is_always_measured() -> None:
    result = scaling.run((8,), dim=8, heads=2, mixers=["tssa"], settings=QUICK)
    assert [row["name"] for row in result["rows"]] == [layers.PROJECTIONS, "softmax", "tssa"]
    assert result["rows"][2]["passes"]["forward"]["ratios"].keys() == {
        layers.PROJECTIONS, "softmax",
    }  # fmt: skip


@pytest.fixture(scope="module")
def widths_result() -> dict[str, Any]:
    return scaling.run(
        (16,), dims=(24, 8, 16), heads=2, mixers=["tssa", "csp"], causal=False, settings=QUICK
    )


def test_a_sweep_over_channels(widths_result: dict[str, Any]) -> None:
    rows = widths_result["rows"]
    shapes = [(row["shape"]["tokens"], row["shape"]["channels"]) for row in rows]
    assert shapes == [(16, c) for c in (8, 16, 24) for _ in range(4)]
    assert set(statuses(widths_result).values()) == {("measured", "")}
    settings = widths_result["settings"]
    assert (settings["axis"], settings["dims"]) == ("channels", [8, 16, 24])
    assert "dim" not in settings
    for entry in widths_result["growth"]:
        assert entry["claimed_exponent"] is None  # claims are about N
        assert (entry["fit"] or {"first_tokens": 8})["first_tokens"] in (8, 16)
    crossed = [e["crossover"] for e in widths_result["growth"] if e["name"] == "tssa"]
    assert [(c["first_tokens"], c["last_tokens"]) for c in crossed] == [(8, 24), (8, 24)]


def test_sweep_over_channels_is_labelled(widths_result: dict[str, Any]) -> None:
    tables = bench_tables(widths_result)
    assert any(re.search(r"\bC\b.*softmax", table.title) for table in tables)
    forward = next(table for table in tables if table.title.startswith("forward, ms "))
    assert forward.headers == ["Name", "C=8", "C=16", "C=24"]
    assert [len(row) for row in forward.rows] == [4] * 4
    assert scaling_plot(widths_result).startswith(b"\x89PNG")


@pytest.mark.slow
def test_causal_layers_are_causal() -> None:
    result = scaling.run((8,), dim=8, heads=2, causal=True, settings=QUICK)
    names = [row["name"] for row in result["rows"]]
    assert names == [
        layers.PROJECTIONS,
        *(name for name in list_mixers() if mixer_card(name).causal),
    ]
    assert "butterfly" not in names
    assert set(statuses(result).values()) == {("measured", "")}
    assert result["settings"]["causal"] is True
    shape = Shape(1, 8, 8, 2)
    for name in names[1:]:
        for causal in (True, False):
            assert layers._mixer(name, causal, shape).causal is causal


@pytest.fixture(scope="module", params=MIXERS)
def trained(request: pytest.FixtureRequest) -> Measured:
    shapes = (Shape(2, 16, 16, 2),)
    result = models.run(shapes, layers=1, mixers=request.param, settings=QUICK)
    return request.param or list_mixers(), result


def test_every_mixer_trains_in_the_encoder(trained: Measured) -> None:
    mixers, result = trained
    json.dumps(result, allow_nan=False)
    assert [row["name"] for row in result["rows"]] == [models.NO_MIXER, *mixers]
    assert set(statuses(result).values()) == {("measured", "")}
    for row in result["rows"]:
        step = row["passes"]["training_step"]
        assert row["extra"]["steps_per_second"] == pytest.approx(1 / step["p50"])
        assert row["extra"]["tokens_per_second"] == pytest.approx(2 * 16 / step["p50"])
        assert 0 < row["extra"]["kernel_share"] <= 1
        assert step["ratios"].keys() == {models.NO_MIXER, "softmax"}
        assert [check["against"] for check in row["gate"]] == ["eager operators"]


def test_baseline_model_has_no_mixer(trained: Measured) -> None:
    parameters = {row["name"]: row["extra"]["parameters"] for row in trained[1]["rows"]}
    # Queries, keys, values and output, with biases.
    assert parameters["softmax"] - parameters[models.NO_MIXER] == 4 * (16 * 16 + 16)


def test_a_training_step_trains() -> None:
    shape = Shape(2, 16, 16, 2)
    torch.manual_seed(0)
    model = BACKBONES["encoder"].make("tssa", 1, shape)
    labels = torch.randint(models.CLASSES, (shape.batch,))
    step = models.training_step(model, models.byte_inputs(model, shape), labels)
    before = [parameter.clone() for parameter in model.parameters()]
    start = [parameter.grad for parameter in model.parameters()]
    step()
    assert start == [None] * len(before)
    assert all(
        not torch.equal(old, new)
        for old, new in zip(before, model.parameters(), strict=True)
        if new.grad.any()
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: models.run(layers=0), "layers"),
        (lambda: models.run(mixers=["tsssa"]), "'tsssa'.*tssa"),
        (lambda: scaling.run(()), "tokens"),
        (lambda: scaling.run((8, 8)), "tokens"),
        (lambda: scaling.run((0,)), "tokens"),
        (lambda: scaling.run((8,), dim=9, heads=2), "heads"),
        (lambda: scaling.run((8,), mixers=["nothing"]), r"'nothing'"),
        (lambda: scaling.run((8, 16), dims=(8, 16)), r"tokens: .*got \[8, 16\]"),
        (lambda: scaling.run((8,), dims=()), r"dims: .*got \[\]"),
        (lambda: scaling.run((8,), dims=(8, 8)), r"dims: .*got \[8, 8\]"),
        (lambda: scaling.run((8,), dims=(9,), heads=2), "heads"),
        (lambda: scaling.run((8,), mixers=["fnet"], causal=True), "mixers: .*got fnet"),
        (lambda: scaling.run((8,), peers=True, causal=True), "peers: .*False.*got True"),
        (lambda: ops.run((Shape(1, 8, 8, 3),)), "heads"),
    ],
    ids=[
        "layers",
        "mixer",
        "no N",
        "N twice",
        "N 0",
        "heads",
        "unknown",
        "N and C",
        "no C",
        "C twice",
        "heads of C",
        "causal",
        "causal peers",
        "shape",
    ],
)
def test_bad_settings_are_named(call: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()
