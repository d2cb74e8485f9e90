"""rm.convert: stages, layers, resume, and what stays unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm
from rifflemix.lab.conversion.outputs import Objective, Samples, assess, kl_divergence
from rifflemix.lab.conversion.stages import HOST_RATE, LAYER_DECAY, layer_rates
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.optim import build_optimizer, set_rates
from rifflemix.surgery.distillation import LayerMatcher, replaced_only, swapped_modules


class Reader(nn.Module):
    """Encoder of two layers with a classifier of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.encoder(self.embed(x), src_key_padding_mask=padding)
        return {"hidden": hidden, "logits": self.head(hidden)}


def reader() -> nn.Module:
    torch.manual_seed(0)
    model = Reader()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def inputs(count: int = 4) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1:, 5:] = True
    return [{"x": torch.randn(3, 7, 8), "padding": padding} for _ in range(count)]


def labelled(count: int = 4) -> list[tuple[dict[str, Tensor], Tensor]]:
    torch.manual_seed(2)
    return [(x, torch.randint(0, 3, (3, 7))) for x in inputs(count)]


def task_loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_conversion_to_softmax_is_exact() -> None:
    report = rm.convert(reader(), "softmax", inputs(), steps={"layers": 1}, lr=1e-9)
    assert all(abs(stage.error) < 1e-5 for stage in report.stages)
    assert all(error < 1e-9 for error in report.stages[-1].layer_errors.values())


def test_stages_reduce_the_error_and_keep_the_original() -> None:
    model = reader()
    model.encoder.layers[1].eval()
    before, flags = states(model), [m.training for m in model.modules()]
    report = rm.convert(
        model,
        "linear",
        labelled(),
        loss=task_loss,
        steps={"layers": 40, "own_inputs": 20, "outputs": 40, "fine_tune": 2},
        score=lambda m: float(m.training),
    )
    assert equal(states(model), before)
    assert [m.training for m in model.modules()] == flags
    names = ["original", "swap", "layers", "own_inputs", "outputs", "fine_tune"]
    assert [stage.stage for stage in report.stages] == names
    original, swap, layers, own, outputs, _ = report.stages
    assert abs(original.error) < 1e-5
    assert layers.error < swap.error
    assert sum(layers.layer_errors.values()) < sum(swap.layer_errors.values())
    assert outputs.task_loss < own.task_loss
    assert {stage.score for stage in report.stages} == {0.0}
    assert all(stage.task_loss is not None for stage in report.stages)
    assert report.finished
    assert list(report.speedups) == [7]
    frame = report.to_frame()
    assert list(frame["stage"]) == names
    assert {"outputs", "rank"} <= set(str(report).split())
    converted = report.model.encoder.layers
    assert all(p.requires_grad for p in report.model.parameters())
    assert not converted[1].linear1.training
    assert converted[0].linear1.training


def test_layer_stages_change_only_the_mixers() -> None:
    model = reader()
    report = rm.convert(model, "tssa", inputs(), steps={"layers": 2, "own_inputs": 2})
    before = states(model)
    for name, value in report.model.state_dict().items():
        if name in before:
            assert torch.equal(value, before[name]), name


def test_frozen_weights_stay_frozen() -> None:
    model = reader()
    model.embed.requires_grad_(False)
    report = rm.convert(model, "linear", inputs(), steps={"outputs": 3})
    assert torch.equal(report.model.embed.weight, model.embed.weight)
    assert not report.model.embed.weight.requires_grad
    assert not torch.equal(report.model.head.weight, model.head.weight)


@pytest.mark.parametrize("stop_at", [1, 4, 7])
def test_a_stopped_conversion_continues_with_equal_bits(tmp_path: Path, stop_at: int) -> None:
    settings: dict[str, Any] = {
        "loss": task_loss, "steps": {"layers": 3, "outputs": 3, "fine_tune": 3}, "keep": 1,
    }  # fmt: skip
    whole = rm.convert(reader(), "linear", labelled(), **settings)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > stop_at

    part = rm.convert(
        reader(), "linear", labelled(), **settings, out=tmp_path / "c", should_stop=stop
    )
    assert not part.finished
    again = rm.convert(reader(), "linear", labelled(), **settings, out=tmp_path / "c")
    assert again.finished
    assert equal(states(again.model), states(whole.model))
    assert [s.error for s in again.stages] == [s.error for s in whole.stages]
    assert again.layers == whole.layers


def test_a_folder_belongs_to_one_conversion(tmp_path: Path) -> None:
    def convert(mixer: str, data: list[Any]) -> None:
        rm.convert(reader(), mixer, data, steps={"layers": 1}, out=tmp_path / "c")

    convert("linear", inputs())
    with pytest.raises(rm.InputError, match="mixer"):
        convert("tssa", inputs())
    with pytest.raises(rm.InputError, match="data"):
        convert("linear", inputs(5))


def test_layers_with_the_largest_errors_keep_their_attention() -> None:
    report = rm.convert(reader(), "tssa", inputs(), steps={"layers": 2}, keep=1)
    errors = {layer.name: layer.error for layer in report.layers}
    kept = [layer.name for layer in report.layers if not layer.is_converted]
    assert kept == [max(errors, key=lambda name: errors[name])]
    assert list(swapped_modules(report.model)) == [n for n in errors if n not in kept]
    assert report.stages[-1].stage == "keep 1"
    alone = next(layer for layer in report.layers if layer.is_converted)
    assert report.stages[-1].error == pytest.approx(alone.error)
    assert alone.error == alone.error_so_far


def test_budget_of_error() -> None:
    settings: dict[str, Any] = {"steps": {"layers": 2}}
    every = rm.convert(reader(), "tssa", inputs(), **settings)
    one, both = sorted(layer.error_so_far for layer in every.layers)
    limited = rm.convert(reader(), "tssa", inputs(), **settings, max_error=(one + both) / 2)
    assert sum(layer.is_converted for layer in limited.layers) == 1
    loose = rm.convert(reader(), "tssa", inputs(), **settings, max_error=both)
    assert all(layer.is_converted for layer in loose.layers)
    with pytest.raises(rm.InputError, match="max_error"):
        rm.convert(reader(), "tssa", inputs(), **settings, max_error=one / 2)


def test_unreachable_speed_up_is_refused() -> None:
    with pytest.raises(rm.InputError, match="min_speedup"):
        rm.convert(reader(), "tssa", inputs(), steps={"layers": 1}, min_speedup=1e6)


def test_chosen_layers_are_converted_and_lengths_are_measured() -> None:
    report = rm.convert(
        reader(), "linear", inputs(), layers=[1], steps={"layers": 1},
        make_inputs=lambda n: torch.randn(1, n, 8), lengths=[4, 8],
    )  # fmt: skip
    assert [layer.index for layer in report.layers] == [1]
    assert list(report.speedups) == [4, 8]


def test_status_contains_the_remaining_time() -> None:
    seen: list[Any] = []
    rm.convert(
        reader(), "linear", inputs(), steps={"layers": 3, "outputs": 3}, on_status=seen.append
    )
    assert {status.mixer for status in seen} == {"layers", "outputs"}
    assert any(status.seconds_left_in_all is not None for status in seen)
    assert seen[-1].state == "done"


def test_matching_by_a_function_of_the_caller() -> None:
    calls = 0

    def match(new: dict[str, Tensor], old: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        return (new["hidden"] - old["hidden"]).abs().mean()

    rm.convert(reader(), "linear", inputs(), steps={"outputs": 2}, match=match)
    assert calls > 2


def test_divergence_is_zero_for_equal_logits_and_ignores_padding() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    assert float(kl_divergence(old, old, 2.0)) == pytest.approx(0.0, abs=1e-6)
    expected = 4 * functional.kl_div(
        (new / 2).log_softmax(-1).flatten(0, 1), (old / 2).softmax(-1).flatten(0, 1),
        reduction="batchmean",
    )  # fmt: skip
    assert float(kl_divergence(new, old, 2.0)) == pytest.approx(float(expected), rel=1e-5)
    padding = torch.tensor([[False, False, True]] * 2)
    other = new.clone()
    other[:, 2] = 7.0
    assert float(kl_divergence(new, old, 2.0, padding)) == float(
        kl_divergence(other, old, 2.0, padding)
    )


def test_padding_does_not_count_in_the_outputs() -> None:
    model = reader().eval()
    new = copy.deepcopy(model)
    rm.replace_attention(new, "tssa")
    objective = Objective("error", 1.0, None)

    def error(filling: float) -> float:
        batches = inputs(1)
        batches[0]["x"][batches[0]["padding"]] = filling
        return assess(new, model, Samples(batches, False), objective).error

    assert error(0.0) == pytest.approx(error(9.0), rel=1e-4)


def test_own_inputs_include_the_errors_of_earlier_layers() -> None:
    model = reader()
    new = copy.deepcopy(model)
    rm.replace_attention(new, "tssa")
    (batch,) = inputs(1)
    original = LayerMatcher(new, model).errors(batch)
    own = LayerMatcher(new, model, own_inputs=True).errors(batch)
    first, second = original
    assert own[first].item() == pytest.approx(original[first].item(), rel=1e-5)
    assert own[second].item() != pytest.approx(original[second].item(), rel=1e-3)
    own[second].backward()
    assert all(
        (p.grad is not None) == name.startswith(f"{second}.mixer")
        for name, p in new.named_parameters()
    )


def test_single_layers_are_converted_temporarily() -> None:
    model = reader()
    rm.replace_attention(model, "tssa")
    before = swapped_modules(model)
    with replaced_only(model, [next(iter(before))]):
        assert list(swapped_modules(model)) == [next(iter(before))]
    assert swapped_modules(model) == before


def test_rates_fall_towards_the_first_layers() -> None:
    model = reader()
    rm.replace_attention(model, "tssa")
    rates = layer_rates(model)
    assert not any(".mixer." in name for name in rates)
    assert rates["head.weight"] == HOST_RATE
    assert rates["encoder.layers.1.linear1.weight"] == HOST_RATE
    assert rates["encoder.layers.0.linear1.weight"] == pytest.approx(HOST_RATE * LAYER_DECAY)
    assert rates["embed.weight"] == pytest.approx(HOST_RATE * LAYER_DECAY**2)


def test_factors_scale_the_rates_of_the_optimizer() -> None:
    class Scaled(nn.Linear):
        def rate_factors(self) -> dict[str, float]:
            return {"bias": 0.25}

    optimizer = build_optimizer(Scaled(2, 2), TrainConfig())
    set_rates(optimizer, 0.5, 0.9)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.125, 0.5]


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no batches": (lambda: rm.convert(reader(), "tssa", []), "batches"),
    "one tensor": (lambda: rm.convert(reader(), "tssa", torch.ones(2, 3, 8)), "batches"),
    "no pairs": (lambda: rm.convert(reader(), "tssa", inputs(), loss=task_loss), "batches"),
    "no labels": (
        lambda: rm.convert(reader(), "tssa", inputs(), steps={"fine_tune": 1}), "fine_tune"
    ),
    "a stage": (lambda: rm.convert(reader(), "tssa", inputs(), steps={"layer": 1}), "layers"),
    "no steps": (lambda: rm.convert(reader(), "tssa", inputs(), steps=0), "steps"),
    "a rate": (lambda: rm.convert(reader(), "tssa", inputs(), lr=-1.0), "lr"),
    "a match": (lambda: rm.convert(reader(), "tssa", inputs(), match="mse"), "match"),
    "all kept": (lambda: rm.convert(reader(), "tssa", inputs(), keep=2), "keep"),
    "two budgets": (
        lambda: rm.convert(reader(), "tssa", inputs(), keep=1, max_error=0.1), "max_error"
    ),
    "slower": (lambda: rm.convert(reader(), "tssa", inputs(), min_speedup=0.5), "min_speedup"),
    "lengths alone": (lambda: rm.convert(reader(), "tssa", inputs(), lengths=[8]), "lengths"),
    "no attention": (lambda: rm.convert(nn.Linear(8, 8), "tssa", inputs()), "model"),
    "a loss of each sample": (
        lambda: rm.convert(
            reader(), "tssa", labelled(), loss=lambda o, y: o["logits"].sum(-1)
        ),
        "loss",
    ),
    "a model of other outputs": (
        lambda: rm.convert(reader(), "tssa", inputs(), match=None),  # type: ignore[arg-type]
        "match",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    call, name = WRONG[case]
    with pytest.raises(rm.InputError, match=name) as found:
        call()
    assert "\n" not in str(found.value)
