"""Sequence sorting: read symbols and write them in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import SPLITS, Batch, Sample, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask, Streams
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, SequenceTask
from rifflemix.lab.tasks.text.next_token import END, FIRST_SYMBOL, PAD, SymbolInputs, add_end

_ROWS_AT_ONCE = 4096


def _shapes(options: Mapping[str, Any]) -> Shapes:
    symbols = max(options["max_length"], options["test_max_length"])
    return Shapes(
        input_kind="tokens",
        num_classes=FIRST_SYMBOL + symbols,
        max_length=symbols + 1,
        vocab_size=FIRST_SYMBOL + symbols,
        padding=True,
        longest=options["max_length"] + 1,
    )


class Sorting(GeneratedTask):
    """Sequences of random symbols, with repetitions."""

    card = TaskCard(
        name="sort",
        title="Sequence sorting",
        source="Tay et al., Sparse Sinkhorn Attention (2020), section 5.1, after Tensor2Tensor",
        licence="generated",
        description=(
            "Write 1 to max_length random symbols in order. Test sequences have up to "
            "test_max_length symbols. Lengths and symbols are uniform. The number of different "
            "symbols is the length of the longest sequence. An end token closes both sequences. "
            "free_running also measures test sequences that the model writes token by token."
        ),
        needs_data=False,
        options={
            "max_length": 256,
            "test_max_length": 512,
            "num_train": 100_000,
            "num_validation": 1000,
            "num_test": 1000,
            "free_running": False,
        },
        output="sequence",
        backbone="seq2seq",
        budget=Budget(batch_size=16, evaluations=4),
        shapes=_shapes,
    )

    at_hand = "generated"

    def load(self, request: Request) -> Task:
        """Generate the data and create the task, in a second or two.

        Nothing is cached.
        """
        length = check_integer(request.options, "max_length", 1)
        test_length = check_integer(request.options, "test_max_length", 1)
        symbols = max(length, test_length)
        lengths = {"train": length, "validation": length, "test": test_length}
        free_running = request.options["free_running"]
        if not isinstance(free_running, bool):
            raise bad_argument("free_running", "true or false", repr(free_running))
        splits = {}
        for part, split in enumerate(SPLITS):
            request.progress("generating sequences", part, len(SPLITS))
            count = request.count(split)
            splits[split] = _generate(request.seed, part, count, lengths[split], symbols)
        return (FreeRunningSortingTask if free_running else SortingTask)(
            name=self.card.name,
            options={**request.options, "seed": request.seed},
            **_shapes(request.options).for_task(),
            split_note="validation sequences are drawn as the training sequences are, apart",
            data_source=f"generated with seed {request.seed}",
            splits=splits,
            pad_id=PAD,
            inputs=SymbolInputs(symbols, symbols),
        )


@dataclass(frozen=True, eq=False)
class SymbolSplit:
    """Sequences of symbols, stored end to end.

    Attributes:
        symbols: (total,) int32. 0 is the smallest symbol.
        ends: (S,) int64, end of each sequence.
    """

    symbols: NDArray[np.int32]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Sample:
        """Return tokens (N,) int64 of a sequence and of the sorted sequence.

        Both contain an end token.
        """
        start, end = (self.ends[index - 1] if index else 0), self.ends[index]
        symbols = torch.from_numpy(self.symbols[start:end].astype(np.int64))
        return add_end(symbols), add_end(symbols.sort().values)

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each sequence, (S,), including the end token."""
        return np.diff(self.ends, prepend=0) + 1

    def digest(self) -> bytes:
        total = hashlib.blake2b(self.ends.astype("<i8").tobytes(), digest_size=16)
        total.update(self.symbols.astype("<i4").tobytes())
        return total.digest()


class SequenceWriter(Protocol):
    """Model that writes sequences, such as `rifflemix.models.Seq2Seq`."""

    def decode(
        self,
        inputs: Tensor,
        max_new_tokens: int,
        *,
        key_padding_mask: Tensor | None,
        start_token: int,
        end_token: int,
        should_stop: Callable[[], bool],
    ) -> Tensor:
        """Read tokens (B, N) and write up to `max_new_tokens` tokens (B, M)."""
        ...


@dataclass(frozen=True, eq=False)
class SortingTask(SequenceTask):
    """Write the tokens of a sequence in sorted order.

    Outputs are logits (B, M, V) of each token of the sorted sequence, given the correct tokens
    before it ("decoder_inputs"). Metrics:

    - "exact_match": share of sequences in which all most likely tokens are correct. Greedy
      decoding solves exactly these sequences.
    - "edit_distance": edit distance of the most likely tokens to the target. It is summed over all
      sequences and divided by the total length of the targets, including end tokens.
    - "tail_edit_distance": also counts tokens after the end of a sequence, up to the longest
      sequence of the batch, except padding. This is Tensor2Tensor's edit distance. It depends on
      the batches.

    A model that repeats the previous token scores well in both edit distances. See
    `FreeRunningSortingTask` for a metric without this problem.
    """

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of loss, token accuracy and sequence metrics."""
        found = super().metrics(outputs, batch)
        labels, likeliest = batch["labels"], outputs.argmax(dim=2)
        lengths, tokens = (labels != UNCOUNTED).sum(dim=1), found["loss"][1]
        distances = edit_distance(likeliest, labels, lengths, lengths)
        return {
            **found,
            "edit_distance": (float(distances.sum().item()), tokens),
            "tail_edit_distance": (float(_with_tail(likeliest, labels, lengths)), tokens),
        }

    @property
    def blind_answer(self) -> str:
        return "repeating the token before"

    def blind_accuracy(self, split: str) -> float:
        """Return the share of target tokens that repeat the previous token."""
        samples = self.split(split)
        written = [samples[index][1] for index in range(len(samples))]
        repeated = sum(int((labels[1:] == labels[:-1]).sum()) for labels in written)
        return repeated / sum(map(len, written))

    @property
    def metric_directions(self) -> dict[str, bool]:
        return super().metric_directions | {"edit_distance": False, "tail_edit_distance": False}


@dataclass(frozen=True, eq=False)
class FreeRunningSortingTask(SortingTask):
    """Sorting task that adds "free_running_edit_distance" on the test split.

    The model writes each token from its own previous tokens, by greedy decoding. The edit distance
    is summed over all sequences and divided by the total length of the targets. Other splits omit
    this metric because decoding is slow.
    """

    def writing_metrics(
        self, model: SequenceWriter, batch: Batch, should_stop: Callable[[], bool]
    ) -> dict[str, tuple[float, int]]:
        """Compute sum and count of the metric.

        Decode up to the longest target of the batch.
        """
        labels = batch["labels"]
        written = model.decode(
            batch["inputs"],
            labels.shape[1],
            key_padding_mask=batch["key_padding_mask"],
            start_token=PAD,
            end_token=END,
            should_stop=should_stop,
        )
        lengths = (labels != UNCOUNTED).sum(dim=1)
        # Length up to and including the first end token, or the full length without an end token.
        going_on = (written == END).cumsum(dim=1) == 0
        written_lengths = (going_on.sum(dim=1) + 1).clamp(max=written.shape[1])
        distances = edit_distance(written, labels, written_lengths, lengths)
        total = float(distances.sum().item())
        return {"free_running_edit_distance": (total, int(lengths.sum().item()))}


def edit_distance(
    written: Tensor, reference: Tensor, written_lengths: Tensor, reference_lengths: Tensor
) -> Tensor:
    """Compute the edit distance: insertions, deletions and replacements.

    Args:
        written: (B, W) integers.
        reference: (B, R) integers.
        written_lengths: (B,) number of valid tokens of each written sequence.
        reference_lengths: (B,) number of valid tokens of each reference sequence.

    Returns:
        (B,) int64.

    Source: Levenshtein 1966.
    """
    batch, positions = len(written), reference.shape[1] + 1
    # Row i contains the distances of the first i written tokens to every prefix of the reference.
    column = torch.arange(positions, device=written.device)
    row = column.expand(batch, -1)
    result = row
    for i in range(written.shape[1]):
        differs = (written[:, i : i + 1] != reference).long()
        best = torch.cat((row[:, :1] + 1, torch.minimum(row[:, :-1] + differs, row[:, 1:] + 1)), 1)
        # Insertions along the row: minimum of best[k] + (j - k) over k up to j.
        row = (best - column).cummin(dim=1).values + column
        result = torch.where((written_lengths == i + 1)[:, None], row, result)
    return result.gather(1, reference_lengths[:, None]).squeeze(1)


def _with_tail(written: Tensor, labels: Tensor, lengths: Tensor) -> int:
    """Sum the edit distances of all tokens (B, M) except padding."""
    is_padding = written == PAD
    others_first = written.gather(1, is_padding.long().argsort(dim=1, stable=True))
    distances = edit_distance(others_first, labels, (~is_padding).sum(dim=1), lengths)
    return int(distances.sum().item())


def _generate(seed: int, part: int, count: int, max_length: int, symbols: int) -> SymbolSplit:
    lengths, drawn = [], []
    for start in range(0, count, _ROWS_AT_ONCE):
        samples = np.arange(start, min(start + _ROWS_AT_ONCE, count))
        words = Streams(seed, part, samples).draw(samples - start, 1 + max_length)
        length = (words[:, 0] % np.uint64(max_length)).astype(np.int64) + 1
        kept = np.arange(max_length) < length[:, None]
        drawn.append((words[:, 1:] % np.uint64(symbols)).astype(np.int32)[kept])
        lengths.append(length)
    return SymbolSplit(np.concatenate(drawn), np.concatenate(lengths).cumsum())
