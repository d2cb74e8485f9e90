"""Convert a trained model in stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from rifflemix.checks import check_integer, check_integers, check_positive
from rifflemix.errors import bad_argument, check_choice, unknown_name
from rifflemix.files import claimed_folder, user_path
from rifflemix.lab.conversion.outputs import MATCHES, Budget, Match, Objective, Samples, TaskLoss
from rifflemix.lab.conversion.report import ConversionReport
from rifflemix.lab.conversion.run import Conversion, Plan
from rifflemix.lab.conversion.stages import STAGES, fingerprint
from rifflemix.lab.runs.status import OnStatus, ShouldStop
from rifflemix.mixers import TokenMixer
from rifflemix.surgery import replace_attention
from rifflemix.surgery.sites import Layers
from rifflemix.surgery.wrappers import without_wrappers

SHARES = {"layers": 0.5, "own_inputs": 0.0, "outputs": 0.5, "fine_tune": 0.0}
"""Share of each stage if `steps` is one number."""
RATES = {"layers": 1e-3, "own_inputs": 1e-3, "outputs": 5e-4, "fine_tune": 5e-4}
"""Default learning rates."""
_VALIDATION = 8  # batches of the default validation


def convert(
    model: nn.Module,
    mixer: str | type[TokenMixer],
    batches: Iterable[Any],
    *,
    layers: Layers = "all",
    steps: int | Mapping[str, int] = 300,
    loss: TaskLoss | None = None,
    validation: Iterable[Any] | None = None,
    score: Callable[[nn.Module], float] | None = None,
    match: Match = "auto",
    temperature: float = 2.0,
    lr: float | Mapping[str, float] | None = None,
    keep: int | None = None,
    max_error: float | None = None,
    min_speedup: float | None = None,
    mixer_options: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    causal: bool | None = None,
    make_inputs: Callable[[int], Any] | None = None,
    lengths: Sequence[int] = (),
    seed: int = 0,
    out: str | Path | None = None,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
) -> ConversionReport:
    """Convert a trained model to another mixer in stages; the model itself does not change.

    The converted model learns from the original, so fine-tune the original for your task first. The
    stages train a copy of it, in this order:

    - "layers": each mixer learns the outputs of its attention, on the inputs of the original.
    - "own_inputs": the same, on the inputs that the converted model computes.
    - "outputs": all weights learn the outputs of the original, and the labels if there are any.
    - "fine_tune": all weights learn the labels alone, with dropout.

    Mixers start with the Q/K/V/O projections of the attention if they have such projections. In
    the last two stages, weights of the original train at a tenth of the learning rate, and less in
    earlier layers. Sources: LoLCATs (Zhang et al. 2024), MOHAWK (Bick et al. 2024) and Mamba in the
    Llama (Wang et al. 2024).

    After the stage "layers", each layer is converted alone to measure its error. With `keep`,
    `max_error` or `min_speedup`, the layers with the largest errors keep their attention.

    Args:
        model: trained model, see `replace_attention`. A copy of it and a converted copy need
            memory.
        mixer: name in `list_mixers()`, or a subclass of `TokenMixer`.
        batches: inputs of the model, one optimizer step each: a tensor, a tuple of arguments or a
            dict of named arguments. With `loss`, pairs (inputs, labels). They are kept in memory
            and used several times in random order.
        layers: layers that may be converted, see `replace_attention`.
        steps: optimizer steps in all, or stage -> steps. One number is divided equally between
            "layers" and "outputs". A mapping trains the stages that it names.
        loss: task loss (outputs, labels) -> tensor. "fine_tune" needs it.
        validation: batches for the errors in the report. Default: the first 8 of `batches`.
        score: function of a model, such as its accuracy; the report has it after each stage.
        match: distance of the outputs in "outputs" and in the report. "kl" is the Kullback-Leibler
            divergence of logits, "error" the relative squared error of the first tensor, "auto" is
            "kl" if the output has `logits`. Or a function (outputs, original outputs) -> tensor.
        temperature: divisor of the logits for "kl".
        lr: peak learning rate, or stage -> rate.
        keep: number of layers that keep their attention.
        max_error: largest `error` after the stage "layers". It limits the number of layers.
        min_speedup: smallest speed-up of a forward pass; as few layers as needed are converted.
        mixer_options: options of the mixer.
        max_length: maximum number of tokens, see `replace_attention`.
        causal: whether the mixers are causal, see `replace_attention`.
        make_inputs: number of tokens -> inputs, to measure time and memory at `lengths`. Default:
            the first validation batch.
        lengths: numbers of tokens to measure.
        seed: seed of new weights, of the order of batches and of dropout.
        out: folder for checkpoints. The same call with the same folder continues.
        on_status: called after each step with the status of the stage.
        should_stop: called after each step; True writes a checkpoint and returns the report so far.

    Returns:
        Report with the converted model.

    Raises:
        InputError: an argument has a wrong value, nothing can be replaced, or `out` belongs to
            another conversion.
        TrainingDiverged: a loss is not finite; the last checkpoint is kept.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import rifflemix as rm
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> batches = [torch.randn(4, 8, 16) for _ in range(3)]
        >>> report = rm.convert(model, "linear", batches, steps={"layers": 3})
        >>> [stage.stage for stage in report.stages]
        ['original', 'swap', 'layers']
    """
    samples = _samples("batches", batches, loss)
    checked = (
        Samples(samples.batches[:_VALIDATION], samples.has_labels)
        if validation is None
        else _samples("validation", validation, loss)
    )
    objective = _objective(match, temperature, loss)
    planned, rates = _steps(steps, loss), _rates(lr)
    _check_lengths(make_inputs, lengths)
    check_integer("seed", seed, 0)
    with ExitStack() as stack:
        alone = stack.enter_context(without_wrappers(model))
        original = copy.deepcopy(alone).eval().requires_grad_(False)
        converted = copy.deepcopy(alone)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            surgery = replace_attention(
                converted,
                mixer,
                layers=layers,
                mixer_options=mixer_options,
                max_length=max_length,
                causal=causal,
            )
        budget = Budget(keep, max_error, min_speedup)
        budget.check(len(surgery.replaced))
        plan = Plan(planned, rates, budget, seed, fingerprint(samples, original))
        folder = _folder(out, stack)
        settings = plan.settings(surgery, objective, mixer_options)
        stack.enter_context(claimed_folder(folder, settings, name="out"))
        run = Conversion(
            alone, original, converted, surgery, samples, checked, objective, plan, folder, score,
            on_status, should_stop,
        )  # fmt: skip
        return run.report(make_inputs, lengths)


def _samples(name: str, batches: Iterable[Any], loss: TaskLoss | None) -> Samples:
    if isinstance(batches, torch.Tensor | Mapping | str) or not isinstance(batches, Iterable):
        raise bad_argument(name, "a list of batches", f"a {type(batches).__name__}")
    found = list(batches)
    if not found:
        raise bad_argument(name, "at least one batch", "none")
    if loss is not None:
        for batch in found:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                got = f"a {type(batch).__name__}"
                raise bad_argument(name, "pairs (inputs, labels) with loss", got)
    return Samples(found, loss is not None)


def _objective(match: Match, temperature: float, loss: TaskLoss | None) -> Objective:
    if not callable(match):
        check_choice("match", match, MATCHES)
    if loss is not None and not callable(loss):
        raise bad_argument("loss", "a function (outputs, labels) -> loss, or None", repr(loss))
    return Objective(match, check_positive("temperature", temperature), loss)


def _steps(steps: int | Mapping[str, int], loss: TaskLoss | None) -> dict[str, int]:
    """Return the steps of the stages that train."""
    if not isinstance(steps, Mapping):
        total = check_integer("steps", steps, 1)
        shares = {name: share for name, share in SHARES.items() if loss or name != "fine_tune"}
        parts = {
            name: round(total * share / sum(shares.values())) for name, share in shares.items()
        }
        return {name: number for name, number in parts.items() if number}
    for name, number in steps.items():
        if name not in STAGES:
            raise unknown_name("stage", str(name), STAGES)
        check_integer(f"steps[{name!r}]", number, 0)
    if steps.get("fine_tune") and loss is None:
        raise bad_argument("steps['fine_tune']", "0 without loss", steps["fine_tune"], "Pass loss.")
    return {name: int(steps[name]) for name in STAGES if steps.get(name)}


def _rates(lr: float | Mapping[str, float] | None) -> dict[str, float]:
    given = lr if isinstance(lr, Mapping) else {} if lr is None else dict.fromkeys(STAGES, lr)
    for name, rate in given.items():
        if name not in STAGES:
            raise unknown_name("stage", str(name), STAGES)
        check_positive("lr", rate)
    return {**RATES, **given}


def _check_lengths(make_inputs: Callable[[int], Any] | None, lengths: Sequence[int]) -> None:
    sizes = check_integers("lengths", lengths, 1)
    if bool(sizes) != (make_inputs is not None):
        got = f"{list(sizes)}" if sizes else "none"
        wanted = "none without make_inputs" if sizes else "numbers of tokens with make_inputs"
        raise bad_argument("lengths", wanted, got)


def _folder(out: str | Path | None, stack: ExitStack) -> Path:
    if out is None:
        return Path(stack.enter_context(TemporaryDirectory(prefix="rifflemix-"))) / "conversion"
    return user_path("out", out)
