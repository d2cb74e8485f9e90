"""Compare Adafactor in float64 with the published algorithm and Tensor2Tensor's version."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_training import make_config, make_model

from rifflemix.errors import InputError
from rifflemix.lab.train.engine import _check_sharding
from rifflemix.lab.train.optim import allocate_state, build_optimizer, learning_rate, set_rates

STEPS = 40
SCHEDULE: dict[str, Any] = {
    "optimizer": "adafactor", "schedule": "rsqrt_decay", "warmup_steps": 12, "lr": 0.3,
    "weight_decay": 0.0, "max_steps": STEPS,
}  # fmt: skip


def literal(weight: Tensor, gradients: list[Tensor], rates: list[float]) -> Tensor:
    """Run the published algorithm with the rates of Tensor2Tensor.

    Source: algorithms 4 and 5 of Shazeer and Stern 2018.
    """
    weight = weight.clone()
    rows, columns, whole = 0.0, 0.0, 0.0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        squared = gradient**2 + 1e-30
        decay = 1 - step**-0.8
        if weight.dim() == 2:
            rows = decay * rows + (1 - decay) * squared.mean(1)
            columns = decay * columns + (1 - decay) * squared.mean(0)
            variance = torch.outer(rows, columns) / rows.mean()
        else:
            variance = whole = decay * whole + (1 - decay) * squared
        update = gradient / variance.sqrt()
        update = update / max(1.0, update.square().mean().sqrt().item())
        scale = max(1e-3, weight.square().mean().sqrt().item())
        weight -= rate * scale * update
    return weight


def made(shape: tuple[int, ...], size: float) -> tuple[nn.Parameter, list[Tensor]]:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64)
    # Rows of different size, and one row without any gradient until late.
    scales = size * torch.logspace(-2, 1, shape[0], dtype=torch.float64)
    scales = scales.view(-1, *[1] * (len(shape) - 1))
    gradients = [scales * torch.randn(shape, dtype=torch.float64) for _ in range(STEPS)]
    for gradient in gradients[:30]:
        gradient[0] = 0.0
    return nn.Parameter(weight), gradients


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("shape", [(7, 5), (1, 9), (6,)])
def test_updates_equal_tensor2tensor(shape: tuple[int, ...], size: float, foreach: bool) -> None:
    """Equal up to the step count: after warm-up, torch's rate is at most 1 / sqrt(step)."""
    config = make_config(**SCHEDULE)
    weight, gradients = made(shape, size)
    rates = [learning_rate(config, step) for step in range(STEPS)]
    assert rates[0] == rates[11] == pytest.approx(0.3 / 12**0.5)
    expected = literal(weight.detach(), gradients, rates)
    optimizer = build_optimizer(_Holder(weight), config, fused=foreach)
    allocate_state(optimizer)
    for gradient, rate in zip(gradients, rates, strict=True):
        set_rates(optimizer, rate, 0.9)
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-12)


class _Holder(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


def test_the_rate_counts_at_most_as_one_over_the_root_of_the_step() -> None:
    """Tensor2Tensor counts one step less, so its rate is at most a factor 1 + 1 / 2t larger."""
    config = make_config(**{**SCHEDULE, "lr": 1.0, "warmup_steps": 12})
    weight, gradients = made((6,), 1.0)
    bounded = [min(learning_rate(config, t), (t + 1) ** -0.5) for t in range(STEPS)]
    assert all(
        1 <= learning_rate(config, t) / rate <= 1 + 0.5 / t + 1e-9
        for t, rate in enumerate(bounded)
        if t >= 12
    )
    expected = literal(weight.detach(), gradients, bounded)
    optimizer = build_optimizer(_Holder(weight), config)
    for step, gradient in enumerate(gradients):
        set_rates(optimizer, learning_rate(config, step), 0.9)
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-12)


def test_moments_are_stored_for_rows_and_columns() -> None:
    model = make_model()
    optimizer = build_optimizer(model, make_config(**SCHEDULE))
    allocate_state(optimizer)
    state = optimizer.state[model.embed.weight]
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "step": (),
        "row_var": (16, 1),
        "col_var": (1, 4),
    }


@pytest.mark.parametrize(("name", "value"), [("betas", (0.8, 0.9)), ("eps", 1e-6)])
def test_settings_that_adafactor_ignores_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{name}: .*'adafactor'"):
        make_config(**SCHEDULE, **{name: value})


def test_decay_shrinks_matrices_only() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    optimizer = build_optimizer(layer, make_config(**{**SCHEDULE, "weight_decay": 0.5}))
    set_rates(optimizer, 0.1, 0.9)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before[0] * (1 - 0.1 * 0.5))
    torch.testing.assert_close(layer.bias.detach(), before[1])


def test_shards_are_refused() -> None:
    config = make_config(**SCHEDULE)
    with pytest.raises(InputError, match=r"^optimizer: .*FSDP, got 'adafactor'"):
        _check_sharding(config, is_sharded=True)
    _check_sharding(config, is_sharded=False)
