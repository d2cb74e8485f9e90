"""Tasks with one label per token, some of which are not scored; masked tokens and sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Batch, Sample, Task
from rifflemix.lab.tasks.core.kinds import (
    MASKED_TOKEN,
    MOST_SHOWN,
    SEQ2SEQ,
    TOKENS,
    Kind,
    confusion,
    predicted_scores,
    ratio_deviation,
    ratio_moments,
)

UNCOUNTED = -100
"""Label of a token that is not scored."""


@dataclass(frozen=True, eq=False)
class TokenLabelTask(Task):
    """Prediction of a class for each token.

    Outputs are logits (B, N, K) for labels (B, N). The label of a token that is not scored is -100.
    "loss" and "accuracy" are means over all scored tokens of a split.
    """

    of_kind: ClassVar[Kind] = TOKENS

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Stack samples into a batch. If the task pads, pad to the longest sample."""
        labels = torch.nn.utils.rnn.pad_sequence(
            [torch.as_tensor(labels).long() for _, labels in samples],
            batch_first=True,
            padding_value=float(UNCOUNTED),
        )
        return {**self.stack([inputs for inputs, _ in samples]), "labels": labels}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compute the mean cross-entropy per scored token, in float32."""
        self._check_outputs(outputs, batch)
        return functional.cross_entropy(
            outputs.float().flatten(0, 1), batch["labels"].flatten(), ignore_index=UNCOUNTED
        )

    def uniform_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        self._check_outputs(outputs, batch)
        counted = outputs[batch["labels"] != UNCOUNTED].float()
        return -functional.log_softmax(counted, dim=1).mean()

    def class_counts(self, split: str) -> list[int] | None:
        """Count the scored tokens of each class."""
        samples = self.split(split)
        total = torch.zeros(self.num_classes, dtype=torch.int64)
        for index in range(len(samples)):
            labels = torch.as_tensor(samples[index][1])
            total += torch.bincount(labels[labels != UNCOUNTED], minlength=self.num_classes)
        return total.tolist()

    def count_labels(self, batch: Batch) -> int:
        """Count the scored tokens."""
        return int((batch["labels"] != UNCOUNTED).sum().item())

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "accuracy" and "loss" over the scored tokens."""
        self._check_outputs(outputs, batch)
        counted = batch["labels"] != UNCOUNTED
        nats = functional.cross_entropy(
            outputs[counted].float(), batch["labels"][counted], reduction="sum"
        )
        right = (outputs.argmax(dim=2) == batch["labels"]) & counted
        return {
            "accuracy": (float(right.sum().item()), int(counted.sum().item())),
            "loss": (float(nats.item()), int(counted.sum().item())),
            **ratio_moments(right.sum(dim=1), counted.sum(dim=1)),
        }

    def observe(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return labels and most likely classes (scored tokens, 2)."""
        counted = batch["labels"] != UNCOUNTED
        return torch.stack((batch["labels"][counted], outputs.argmax(dim=2)[counted]), dim=1)

    def score_split(self, observed: NDArray[Any]) -> dict[str, float]:
        """Compute "balanced_accuracy" and "f1_macro" over the scored tokens of a split."""
        labels, predicted = observed[:, 0], observed[:, 1]
        return predicted_scores(labels, predicted) | self._chosen_f1(labels, predicted)

    def confusion(self, observed: NDArray[Any]) -> list[list[int]] | None:
        """Count the scored tokens of a split by true and predicted class."""
        if self.num_classes > MOST_SHOWN:
            return None
        return confusion(observed[:, 0], observed[:, 1], self.num_classes)

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute the standard deviation of the accuracy.

        It is the standard error over sequences, times the square root of their number.
        """
        deviation = ratio_deviation(means["accuracy"], means) if "accuracy" in means else None
        return {} if deviation is None else {"accuracy_deviation": deviation}

    def _check_outputs(self, outputs: Tensor, batch: Batch) -> None:
        expected = (*batch["labels"].shape, self.num_classes)
        if tuple(outputs.shape) != expected:
            raise bad_argument(
                "outputs",
                f"logits of each token, (B, N, K) = {expected}",
                tuple(outputs.shape),
                "choose a model with an output per token: gpt, or encoder with pool='none'",
            )


MASKED_SHARE = 0.15
"""Share of the tokens that is masked. Source: Devlin et al. 2019, BERT, section 3.1."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedTokenTask(TokenLabelTask):
    """Prediction of masked tokens.

    The labels are the original tokens at masked positions and -100 elsewhere. Masks of the
    validation and test split are fixed. Training draws new masks for every batch.

    Attributes:
        mask_id: Token id of a masked position, the last one. Models do not predict it.
    """

    of_kind: ClassVar[Kind] = MASKED_TOKEN

    mask_id: int

    def augment(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        """Draw other masked positions, with one seed per sample."""
        labels, inputs = batch["labels"], batch["inputs"]
        whole = torch.where(labels == UNCOUNTED, inputs, labels)
        padding = batch.get("key_padding_mask")
        lengths = [len(row) for row in whole] if padding is None else (~padding).sum(1).tolist()
        new_inputs, new_labels = whole.clone(), torch.full_like(labels, UNCOUNTED)
        for row, (seed, length) in enumerate(zip(seeds, lengths, strict=True)):
            masked, targets = mask_tokens(whole[row, :length], seed, self.mask_id)
            new_inputs[row, :length], new_labels[row, :length] = masked, targets
        return {**batch, "inputs": new_inputs, "labels": new_labels}

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Compute "perplexity", and the standard deviation of the accuracy."""
        nats = means["loss"]
        perplexity = math.exp(nats) if nats < 700 else math.inf
        return {"perplexity": perplexity, **super().summarise(means)}


def mask_tokens(tokens: Tensor, seed: int, mask_id: int) -> tuple[Tensor, Tensor]:
    """Mask about 15 % of the tokens (N,), at least one.

    Returns:
        Inputs with the mask id, and labels with -100 at other positions.
    """
    drawn = torch.rand(len(tokens), generator=torch.Generator().manual_seed(seed % 2**63))
    is_masked = drawn < MASKED_SHARE
    is_masked[drawn.argmin()] = True
    return tokens.masked_fill(is_masked, mask_id), tokens.masked_fill(~is_masked, UNCOUNTED)


@dataclass(frozen=True, eq=False)
class SequenceTask(TokenLabelTask):
    """Prediction of a sequence from another one.

    Outputs are logits (B, M, V) of each target token, given the correct tokens before it
    ("decoder_inputs"). The decoder reads the padding id first. "accuracy" counts tokens.
    "exact_match" is the share of sequences in which all most likely tokens are correct. Greedy
    decoding solves exactly these sequences.
    """

    of_kind: ClassVar[Kind] = SEQ2SEQ

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return inputs (B, N), key_padding_mask, decoder_inputs and labels (B, M)."""
        batch = self.stack([inputs for inputs, _ in samples])
        labels = pad_sequence(
            [label for _, label in samples], batch_first=True, padding_value=UNCOUNTED
        )
        shifted = functional.pad(labels[:, :-1], (1, 0), value=self.pad_id)
        return {
            **batch,
            "labels": labels,
            "decoder_inputs": shifted.masked_fill(shifted == UNCOUNTED, self.pad_id),
        }

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Compute sum and count of "loss", "accuracy" and "exact_match"."""
        labels = batch["labels"]
        is_right = ((outputs.argmax(dim=2) == labels) | (labels == UNCOUNTED)).all(dim=1)
        exact = (float(is_right.sum().item()), len(labels))
        return {**super().metrics(outputs, batch), "exact_match": exact}

    def _check_outputs(self, outputs: Tensor, batch: Batch) -> None:
        expected = (*batch["labels"].shape, self.num_classes)
        if tuple(outputs.shape) != expected:
            raise bad_argument(
                "outputs",
                f"logits of the target sequence, (B, M, V) = {expected}",
                tuple(outputs.shape),
                "choose a model that writes sequences, such as seq2seq",
            )
