"""Predictions of a trained model, and sequences that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.compat import evaluation_mode
from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks.core.card import InputSpec, TaskRecord
from rifflemix.lab.tasks.core.recorded import stack_sequences
from rifflemix.lab.tasks.graphs.graphs import stack_graphs
from rifflemix.lab.train.evaluate import model_options, run_model
from rifflemix.models import Model, continue_prompts
from rifflemix.models.language.generation import CausalModel

Batch = dict[str, Tensor]

_MOST_SAMPLES = 256
_MOST_TOKENS = 1 << 16


def stack_inputs(record: TaskRecord, inputs: Sequence[Any]) -> Batch:
    """Stack the inputs of samples as the task does in training."""
    if record.shapes.input_kind == "graphs":
        return stack_graphs(inputs)
    return stack_sequences(
        inputs,
        padding=record.shapes.padding,
        pad_id=record.pad_id,
        num_sequences=record.shapes.num_sequences,
    )


def equal_batches(record: TaskRecord, inputs: Sequence[Any]) -> Iterator[tuple[list[int], Batch]]:
    """Yield positions and batches of inputs of equal length.

    Batches need no padding, so that an output does not depend on the other inputs: the outputs of
    some mixers change with the amount of padding.
    """
    groups: dict[int, list[int]] = {}
    for position, sample in enumerate(inputs):
        groups.setdefault(_length(sample), []).append(position)
    for length, positions in sorted(groups.items()):
        size = max(1, min(_MOST_SAMPLES, _MOST_TOKENS // length))
        for start in range(0, len(positions), size):
            chosen = positions[start : start + size]
            yield chosen, stack_inputs(record, [inputs[position] for position in chosen])


def _length(sample: Any) -> int:
    """Return the number of tokens, nodes or pixels; of a pair, the longer sequence counts."""
    if isinstance(sample, tuple):
        return max(len(part) for part in sample)
    if isinstance(sample, dict):
        return len(sample["inputs"])
    return int(sample.shape[-1] * sample.shape[-2]) if sample.dim() == 3 else len(sample)


_NOISE = 0  # seed of models that are noisy in evaluation


@runtime_checkable
class DecodesTokens(Protocol):
    """Specification that converts token ids back to the form of its raw inputs."""

    def decode(self, ids: Sequence[int]) -> Any:
        """Convert token ids."""
        ...


@runtime_checkable
class ReadsSequences(DecodesTokens, Protocol):
    """Specification of the inputs of models that write sequences.

    Attributes:
        start_token: First input of the decoder.
        end_token: Last token of a sequence.
        longest_output: Maximum number of tokens of an output. None for the length of the input.
    """

    start_token: int
    end_token: int
    longest_output: int | None


@runtime_checkable
class FillsMasks(Protocol):
    """Specification of inputs with masked tokens."""

    def fill(self, ids: Sequence[int], predicted: Sequence[int]) -> Any:
        """Replace masked tokens by predicted tokens, and convert them to a raw input."""
        ...


@runtime_checkable
class PicksTokens(Protocol):
    """Specification of inputs in which some tokens have no prediction."""

    def picked(self, ids: Tensor) -> Tensor:
        """Return (N,) bools: whether each token has a prediction."""
        ...


@runtime_checkable
class WritesSequences(Protocol):
    """Model that writes sequences, such as `rifflemix.models.Seq2Seq`."""

    def decode(
        self, inputs: Tensor, max_new_tokens: int, *, start_token: int, end_token: int, **masks: Any
    ) -> Tensor:
        """Read tokens (B, N) and write up to `max_new_tokens` tokens (B, M)."""
        ...


def predict(model: Model, record: TaskRecord, spec: InputSpec, samples: Sequence[Any]) -> Any:
    """Predict a label for each sample; see `TrainedRun.predict`."""
    if isinstance(spec, FillsMasks):
        rows = _rows(model, record, samples)
        filled = (row.argmax(dim=1).tolist() for row in rows)
        return [spec.fill(ids.tolist(), new) for ids, new in zip(samples, filled, strict=True)]
    if record.output == "tokens":
        names = np.array(record.classes)
        picked = _of_tokens(model, record, spec, samples)
        return [names[rows.argmax(dim=1).numpy()] for rows in picked]
    if record.output == "sequence":
        return write_sequences(model, record, spec, samples)
    outputs = torch.stack(_rows(model, record, samples))
    if record.output == "number":
        return numbers(record, outputs)
    if record.output == "labels":
        return [
            [name for name, logit in zip(record.classes, row, strict=True) if logit > 0]
            for row in outputs.tolist()
        ]
    likeliest = outputs.argmax(dim=1).tolist()
    if record.output == "classes":
        return np.array(record.classes)[likeliest]
    if isinstance(spec, DecodesTokens):
        return np.array([spec.decode([token]) for token in likeliest])
    return np.array(likeliest)


def numbers(record: TaskRecord, outputs: Tensor) -> NDArray[np.float64]:
    """Convert standardized outputs (M, targets) to the units of the targets.

    Returns:
        (M,) for one number, otherwise (M, *target_shape).
    """
    values = outputs.double().numpy().reshape(len(outputs), *record.target_shape)
    scaled = values * np.array(record.target_std) + np.array(record.target_mean)
    return np.asarray(scaled, dtype=np.float64)


def probabilities(
    model: Model, record: TaskRecord, spec: InputSpec, samples: Sequence[Any]
) -> NDArray[Any] | list[NDArray[Any]]:
    """Predict probabilities; see `TrainedRun.predict_proba`."""
    if record.output == "tokens":
        picked = _of_tokens(model, record, spec, samples)
        return [rows.softmax(dim=1).numpy() for rows in picked]
    if record.output == "labels":
        return torch.stack(_rows(model, record, samples)).sigmoid().numpy()
    if record.output not in ("classes", "next_token"):
        raise bad_argument(
            "predict_proba", "a task with classes", f"task {record.name}", "call predict"
        )
    return torch.stack(_rows(model, record, samples)).softmax(dim=1).numpy()


def _of_tokens(
    model: Model, record: TaskRecord, spec: InputSpec, samples: Sequence[Any]
) -> list[Tensor]:
    """Return the outputs (N, K) of the tokens of each sample that have a prediction."""
    rows = _rows(model, record, samples)
    if not isinstance(spec, PicksTokens):
        return rows
    return [row[spec.picked(ids)] for row, ids in zip(rows, samples, strict=True)]


def _rows(model: Model, record: TaskRecord, samples: Sequence[Any]) -> list[Tensor]:
    """Run the model; return float32 outputs of each sample, (K,) or (N, K) for tokens."""

    def run(batch: Batch) -> Tensor:
        outputs = run_model(model, batch).float()
        return outputs[:, -1] if record.output == "next_token" else outputs

    return _each(model, record, samples, run)


def write_sequences(
    model: Model,
    record: TaskRecord,
    spec: InputSpec,
    samples: Sequence[Any],
    max_new_tokens: int | None = None,
) -> list[Any]:
    """Let the model write a sequence for each sample, by default at most as long as the sample."""
    if not isinstance(spec, ReadsSequences) or not isinstance(model, WritesSequences):
        raise InputError(
            f"task {record.name}: the model cannot write sequences, or the inputs have no start "
            "and end token; call .model on the task's batches"
        )

    longest = spec.longest_output if max_new_tokens is None else max_new_tokens

    def run(batch: Batch) -> Tensor:
        inputs = batch["inputs"]
        return model.decode(
            inputs,
            longest or inputs.shape[1],
            start_token=spec.start_token,
            end_token=spec.end_token,
            **model_options(batch),
        )

    return [spec.decode(row.tolist()) for row in _each(model, record, samples, run)]


@torch.no_grad()
def _each(
    model: Model, record: TaskRecord, samples: Sequence[Any], run: Callable[[Batch], Tensor]
) -> list[Tensor]:
    """Run batches of equal lengths; return a row of outputs for each sample, on the CPU."""
    device = next(model.parameters()).device
    found: list[Tensor] = [torch.empty(0)] * len(samples)
    with evaluation_mode(model), _fixed_noise(device) as restart:
        for positions, batch in equal_batches(record, samples):
            restart()
            outputs = run({name: value.to(device) for name, value in batch.items()})
            for position, row in zip(positions, outputs.cpu(), strict=True):
                found[position] = row
    return found


@contextmanager
def _fixed_noise(device: torch.device) -> Iterator[Callable[[], object]]:
    """Yield a function that restarts the random numbers; restore them at the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield lambda: torch.manual_seed(_NOISE)


@runtime_checkable
class ContinuesPrompts(InputSpec, Protocol):
    """Specification of the inputs of language models.

    Attributes:
        num_outputs: Ids from this number on are only inputs, such as a start token.
        max_length: Maximum number of tokens.
    """

    num_outputs: int
    max_length: int

    def decode_whole(self, ids: Sequence[int]) -> Any:
        """Convert the ids of a prompt and its continuation to the form of a prompt."""
        ...


def generate(
    model: Model,
    record: TaskRecord,
    spec: InputSpec,
    prompts: Any,
    max_new_tokens: int | None,
    *,
    temperature: float,
    top_k: int | None,
    seed: int,
    should_stop: Callable[[], bool] | None = None,
) -> list[Any]:
    """Continue prompts, or write a sequence for each source; see `TrainedRun.generate`."""
    samples = spec.encode([prompts] if isinstance(prompts, str) else prompts)
    if max_new_tokens is not None:
        max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 0)
    if record.output == "sequence":
        if temperature or top_k is not None:
            raise bad_argument(
                "temperature",
                "0 and no top_k for a sequence-to-sequence model",
                f"{temperature} and top_k={top_k}",
                "its decoding is greedy",
            )
        return write_sequences(model, record, spec, samples, max_new_tokens)
    if record.output != "next_token" or not isinstance(spec, ContinuesPrompts):
        raise InputError(
            f"generate: expected a language model or a sequence-to-sequence model, got a model of "
            f"task {record.name}; call predict"
        )
    return _continued(model, spec, samples, max_new_tokens, temperature, top_k, seed, should_stop)


def _continued(
    model: Model,
    spec: ContinuesPrompts,
    samples: Sequence[Tensor],
    count: int | None,
    temperature: float,
    top_k: int | None,
    seed: int,
    should_stop: Callable[[], bool] | None,
) -> list[Any]:
    """Continue prompts; by default up to the maximum length, each to its own end."""
    longest = max((len(sample) for sample in samples), default=0)
    room = spec.max_length + 1 - longest if count is None else count
    device = next(model.parameters()).device
    found = continue_prompts(
        cast(CausalModel, model),
        [sample.to(device) for sample in samples],
        room,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        below=spec.num_outputs,
        should_stop=should_stop,
    )
    return [spec.decode_whole(tokens.tolist()) for tokens in found]
