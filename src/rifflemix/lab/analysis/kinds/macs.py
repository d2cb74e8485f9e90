"""Multiply-accumulates and parameters of each layer, next to the reported values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor, nn

from rifflemix.lab.analysis.drawing import COLOURS, GREY, inputs_of, panels, tidy
from rifflemix.lab.analysis.finding import Finding, Subject, Tick, silent
from rifflemix.lab.analysis.trace import run_batch, undisturbed
from rifflemix.models.base import without_fast_path
from rifflemix.models.macs import multiply_accumulates
from rifflemix.models.presets import ModelCard
from rifflemix.models.registry import list_models, model_card, model_settings


@dataclass(frozen=True)
class Cost:
    """Cost of one part of a model for one sample: multiply-accumulates and parameters."""

    name: str
    macs: int
    parameters: int


class _Bound(nn.Module):
    """A module with fixed keyword arguments."""

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.options = module, options

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs, **self.options)


class _OnBatch(nn.Module):
    """A model with a batch as its only argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> None:
        run_batch(self.model, batch)


def costs_of(subject: Subject) -> tuple[list[Cost], Cost]:
    """Compute the costs of a model's parts and of the whole.

    All costs are for the first sample. Parts are the children of the model. Lists of layers are
    split into their layers, at any depth. The last part, "the rest", contains the operations
    outside the other parts.
    """
    batch = _first_sample(subject.batches[0])
    calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
    parts = _parts(subject.model)

    def note(name: str, module: nn.Module, args: Any, options: dict[str, Any]) -> None:
        calls.setdefault(name, []).append((args, options))

    with ExitStack() as hooks, undisturbed(subject.model), without_fast_path():
        for name, part in parts.items():
            hook = partial(note, name)
            hooks.enter_context(part.register_forward_pre_hook(hook, with_kwargs=True))
        run_batch(subject.model, batch)
    with undisturbed(subject.model):
        costs = [
            Cost(
                name,
                sum(
                    multiply_accumulates(_Bound(part, options), *args)
                    for args, options in calls.get(name, ())
                ),
                _parameters(part),
            )
            for name, part in parts.items()
        ]
        total = multiply_accumulates(_OnBatch(subject.model), batch)
    whole = Cost("whole model", total, _parameters(subject.model))
    rest = Cost(
        "the rest",
        whole.macs - sum(cost.macs for cost in costs),
        whole.parameters - sum(cost.parameters for cost in costs),
    )
    return [*costs, rest], whole


def _parts(model: nn.Module) -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        inner: Mapping[str, nn.Module] = {"": child}
        if _is_list(child):
            inner = dict(child.named_children())
        elif any(map(_is_list, child.modules())):  # an encoder that contains the layers
            inner = _parts(child)
        parts |= {f"{name}.{n}" if n else name: part for n, part in inner.items()}
    return parts


def _is_list(module: nn.Module) -> bool:
    """Check for a list of layers.

    This is a ModuleList, or a Sequential of blocks of one class.
    """
    if isinstance(module, nn.Sequential):
        blocks = list(module)
        return len({type(b) for b in blocks}) == 1 and any(True for _ in blocks[0].children())
    return isinstance(module, nn.ModuleList)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _first_sample(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch[:1]
    if isinstance(batch, tuple | list):
        return tuple(_first_sample(part) for part in batch)
    if isinstance(batch, dict):
        return {name: _first_sample(part) for name, part in batch.items()}
    return batch


def macs(subjects: Sequence[Subject], tick: Tick = silent) -> Finding:
    """Compare costs by layer for one sample.

    Source: Sapkota and Bhattarai 2025 (Dimension Mixer), Tables 3 and 7.
    """
    found: dict[str, tuple[list[Cost], Cost]] = {}
    tokens: dict[str, tuple[int, ...]] = {}
    for subject in subjects:
        tick(subject.label, 0, 1)
        found[subject.label] = costs_of(subject)
        tokens[subject.label] = tuple(inputs_of(subject.batches[0]).shape[1:])
        tick(subject.label, 1, 1)
    cards = {subject.label: _card(subject) for subject in subjects}
    return Finding(
        summary=tuple(
            _sentence(label, whole, cards[label], tokens[label])
            for label, (_, whole) in found.items()
        ),
        headers=("Model", "Part", "MACs", "Share, %", "Parameters"),
        rows=tuple(
            (
                label,
                cost.name,
                f"{cost.macs:,}",
                f"{100 * cost.macs / max(whole.macs, 1):.1f}",
                f"{cost.parameters:,}",
            )
            for label, (costs, whole) in found.items()
            for cost in (*costs, whole)
        ),
        caption=(
            "Multiply-accumulates (MACs) of each part for one sample: products of matrices, "
            "convolutions and attention, and one for every output number of a norm or "
            "activation, as the counter behind the paper's tables counts. Sorts, shifts and "
            "Fourier transforms have none. "
            "Blue: parts with over 1 % of the whole; grey: the others."
        ),
        data={
            "models": {
                label: {
                    "macs": whole.macs,
                    "parameters": whole.parameters,
                    "printed_macs_millions": _millions(cards[label]),
                    "parts": [vars(cost) for cost in costs],
                }
                for label, (costs, whole) in found.items()
            }
        },
        figure=_figure(found),
    )


def _card(subject: Subject) -> ModelCard | None:
    """Return the card of a preset with default settings, or None.

    Papers report costs only for the default settings.
    """
    name = str(subject.about.get("model", ""))
    if name not in list_models():
        return None
    own = model_settings(name)
    settings: dict[str, Any] = getattr(subject.model, "settings", {})
    return model_card(name) if own | settings == own else None


def _millions(card: ModelCard | None) -> float | None:
    """Return the reported MACs in millions, or None."""
    if card is None or not card.printed_macs:
        return None
    number, _, unit = card.printed_macs.partition(" ")
    return float(number) if unit else float(number) / 1e6


def _in_words(macs: int) -> str:
    """Format 12,345,678 as "12.35 M"; keep all digits below a million."""
    return f"{macs / 1e6:.2f} M" if macs >= 1e6 else f"{macs:,}"


def _sentence(label: str, whole: Cost, card: ModelCard | None, shape: tuple[int, ...]) -> str:
    size = " x ".join(map(str, shape)) or "one number"
    sentence = (
        f"{label}: {_in_words(whole.macs)} multiply-accumulates for a sample of {size}, "
        f"{whole.parameters:,} parameters"
    )
    if card is not None and card.printed_macs:
        sentence += f"; the paper prints {card.printed_macs}"
        sentence += f" and {card.printed} parameters" if card.printed else ""
    return f"{sentence}."


def _figure(found: dict[str, tuple[list[Cost], Cost]]) -> Figure:
    """Draw a panel per model, all on one scale.

    Parts without MACs and parameters are left out.
    """
    drawn = {
        label: ([cost for cost in costs if cost.macs or cost.parameters], whole)
        for label, (costs, whole) in found.items()
    }
    names = {tuple(cost.name for cost in costs) for costs, _ in drawn.values()}
    most = max(map(len, names))
    figure, axes = panels(
        len(drawn), height=0.9 + 0.24 * most, most=4 if len(names) == 1 else 3, sharex=True
    )
    for position, (place, (label, (costs, whole))) in enumerate(
        zip(axes, drawn.items(), strict=True)
    ):
        values = [cost.macs / 1e6 for cost in costs]
        floor = 0.01 * whole.macs / 1e6
        colours = [COLOURS[0] if value > floor else GREY for value in values]
        place.barh(range(len(costs)), values, color=colours)
        is_named = len(names) > 1 or position % 4 == 0
        place.set_yticks(range(len(costs)), [cost.name if is_named else "" for cost in costs])
        place.set_ylim(most - 0.4, -0.6)
        tidy(place, title=f"{label}: {_in_words(whole.macs)}", x="MACs, millions")
        place.tick_params(labelsize=8, labelbottom=True)
    return figure
