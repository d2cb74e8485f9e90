"""Measure costs of mixers in a user's own model."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.bench.swap import ORIGINAL, SwapMeasurement, SwapRow


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        return {"ids": ids, "states": (self.encoder(self.embed(ids)),)}


def ids(length: int) -> dict[str, Tensor]:
    return {"ids": torch.zeros(2, length, dtype=torch.long)}


@pytest.fixture(scope="module")
def measured() -> SwapMeasurement:
    torch.manual_seed(0)
    model = Tagger().train()
    before = copy.deepcopy(model.state_dict())
    mixers = {"tssa": ("tssa", {}), "halves": ("csp", {"num_groups": 2}), "bad": ("csp", {"a": 1})}
    found = rm.measure_swap(model, mixers, ids, [16, 8], repeats=1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    return found


def test_every_length_phase_and_mixer_is_measured(measured: SwapMeasurement) -> None:
    assert measured.mixers == [ORIGINAL, "tssa", "halves"]
    assert len(measured.rows) == 2 * 2 * 3
    assert all(row.seconds > 0 and row.peak_memory_bytes > 0 for row in measured.rows)
    assert "csp" in measured.refused["bad"]
    training = measured.costs("tssa", "training", "peak_memory_bytes")
    forward = measured.costs("tssa", "forward", "peak_memory_bytes")
    assert all(training[n] > forward[n] for n in (8, 16))


def test_plot_is_a_png_file(measured: SwapMeasurement, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = measured.plot(tmp_path / "swap.png")
    assert picture.startswith(b"\x89PNG")
    assert (tmp_path / "swap.png").read_bytes() == picture


def test_table_names_crossovers_and_lengths_at_which_the_original_wins() -> None:
    rows = []
    for phase in ("forward", "training"):
        for n in (64, 256):
            rows.append(SwapRow(ORIGINAL, n, phase, n**2 / 1e6, n * 1024))
            rows.append(SwapRow("even", n, phase, n * 128 / 1e6, n * 2048))
    found = SwapMeasurement(rows, {"csp": "sees later tokens"}, "cpu", 2)
    crossing = found.crossover("even", "forward")
    assert crossing is not None
    assert crossing.tokens == pytest.approx(128)
    table = str(found)
    assert "| original | 4.1 ms, 64.0 KiB | 65.5 ms, 256 KiB |  |  |" in table
    assert "| even | 8.19 ms, 128 KiB | 32.8 ms, 512 KiB | 128 | " in table
    assert re.search(r"^- .*original.*even \(training\).* 64\.$", table, re.MULTILINE)
    assert "- csp: sees later tokens" in table


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"mixers": "tssa"}, "mixers: .*got 'tssa'"),
    "none": ({"mixers": []}, "mixers"),
    "label": ({"mixers": {ORIGINAL: ("tssa", {})}}, "labelled"),
    "pair": ({"mixers": {"a": ("tssa", 4)}}, "mixers: .*'a'"),
    "no lengths": ({"lengths": []}, "lengths:"),
    "length": ({"lengths": [0]}, "lengths"),
    "unknown": ({"mixers": ["tsa"]}, "'tsa'.*tssa"),
    "no attention": ({"model": nn.Linear(2, 2)}, "mixers:"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_refused(case: str) -> None:
    arguments, says = REFUSED[case]
    settings: dict[str, Any] = {
        "model": Tagger(),
        "mixers": ["tssa"],
        "make_inputs": ids,
        "lengths": [8],
        **arguments,
    }
    with pytest.raises(rm.InputError, match=says):
        rm.measure_swap(**settings)


def test_forward_is_measured_as_in_use_and_training_as_in_training() -> None:
    seen: dict[type, set[tuple[bool, bool]]] = {}

    class Watched(Tagger):
        def forward(self, ids: Tensor) -> dict[str, Any]:
            attention = type(self.encoder.layers[0].self_attn)
            modes = (self.encoder.layers[0].dropout.training, torch.is_grad_enabled())
            seen.setdefault(attention, set()).add(modes)
            return super().forward(ids)

    rm.measure_swap(Watched(), ["tssa"], ids, [8], repeats=1)
    assert list(seen.values()) == [{(False, False), (True, True)}] * 2


def test_an_output_of_a_dataclass_and_a_label_for_a_name() -> None:
    @dataclass
    class Output:
        ids: Tensor
        scores: Tensor

    class Typed(Tagger):
        def forward(self, ids: Tensor) -> Any:
            return Output(ids, super().forward(ids)["states"][0])

    found = rm.measure_swap(Typed(), {"statistics": "tssa"}, ids, [8], repeats=1)
    assert {row.mixer for row in found.rows} == {ORIGINAL, "statistics"}


def test_a_model_without_an_output_to_train_on() -> None:
    class Silent(Tagger):
        def forward(self, ids: Tensor) -> dict[str, Any]:
            super().forward(ids)
            return {"ids": ids}

    with pytest.raises(rm.InputError, match="model:"):
        rm.measure_swap(Silent(), ["tssa"], ids, [8], repeats=1)
