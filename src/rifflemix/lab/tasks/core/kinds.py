"""Kinds of tasks: target, output, loss, metrics and prediction of each kind, in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Output = Literal["classes", "labels", "number", "tokens", "next_token", "sequence"]
"""Format of a model's output.

- "classes": logits (B, K), one class per sample.
- "labels": logits (B, K), any number of labels per sample.
- "number": standardized numbers (B, T).
- "tokens": logits (B, N, K) of a class for each position, from all positions.
- "next_token": logits (B, N, V) of the token after each position.
- "sequence": logits (B, M, V) of another sequence.
"""

TOKEN_OUTPUTS = ("next_token", "tokens")
"""Outputs with one prediction per token. Models of such tasks accept shorter sequences."""


@dataclass(frozen=True)
class Kind:
    """Prediction of a task, its loss and its metrics.

    `compare`, `train`, `analyze`, `predict` and `export` read it. A plugin sets `Task.of_kind` to
    another `Kind` for a task with a different loss or different metrics.

    Attributes:
        name: Value of `kind=` and `--kind`.
        target: Target of a sample.
        output: Format of the model output, see `Output`.
        backbone: Registry name of the default model.
        loss: Name of the training loss.
        metrics: Metrics that can select a model: name -> True if higher is better. The first one
            is the default.
        prediction: What `TrainedRun.predict` returns for a sample.

    Example:
        >>> from rifflemix.lab.tasks.core.kinds import KINDS
        >>> KINDS["regression"].metric, KINDS["regression"].output
        ('rmse', 'number')
    """

    name: str
    target: str
    output: Output
    backbone: str
    loss: str
    metrics: Mapping[str, bool]
    prediction: str

    @property
    def metric(self) -> str:
        """Default metric."""
        return next(iter(self.metrics))


CLASSIFICATION = Kind(
    "classification",
    target="one class per sample",
    output="classes",
    backbone="encoder",
    loss="cross-entropy",
    metrics={
        "accuracy": True,
        "balanced_accuracy": True,
        "f1_macro": True,
        "auroc": True,
        "average_precision": True,
        "loss": False,
    },
    prediction="the name of a class",
)
MULTILABEL = Kind(
    "multilabel",
    target="any number of labels per sample",
    output="labels",
    backbone="encoder",
    loss="binary cross-entropy",
    metrics={
        "average_precision": True,
        "f1_macro": True,
        "auroc": True,
        "accuracy": True,
        "exact_match": True,
        "loss": False,
    },
    prediction="a list of label names",
)
REGRESSION = Kind(
    "regression",
    target="one or several numbers per sample",
    output="number",
    backbone="encoder",
    loss="mean squared error",
    metrics={"rmse": False, "mae": False, "mse": False, "r2": True, "loss": False},
    prediction="numbers in the units of the targets",
)
TOKENS = Kind(
    "tokens",
    target="one class for each token",
    output="tokens",
    backbone="encoder",
    loss="cross-entropy per token",
    metrics={"accuracy": True, "balanced_accuracy": True, "f1_macro": True, "loss": False},
    prediction="the name of a class for each token",
)
FORECAST = Kind(
    "forecast",
    target="the next steps of a series",
    output="number",
    backbone="encoder",
    loss="mean squared error",
    metrics={"mase": False, "mae": False, "rmse": False, "mse": False, "r2": True, "loss": False},
    prediction="the next steps (horizon, channels) in the units of the series",
)
NEXT_TOKEN = Kind(
    "next_token",
    target="the token after each token",
    output="next_token",
    backbone="gpt",
    loss="cross-entropy per token",
    metrics={"perplexity": False, "bits_per_byte": False, "accuracy": True, "loss": False},
    prediction="the most likely next token",
)
MASKED_TOKEN = Kind(
    "masked_token",
    target="the masked tokens",
    output="tokens",
    backbone="encoder",
    loss="cross-entropy per masked token",
    metrics={"accuracy": True, "perplexity": False, "loss": False},
    prediction="the input with its masked tokens filled in",
)
SEQ2SEQ = Kind(
    "seq2seq",
    target="another sequence",
    output="sequence",
    backbone="seq2seq",
    loss="cross-entropy per token",
    metrics={"accuracy": True, "exact_match": True, "loss": False},
    prediction="the other sequence",
)

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        CLASSIFICATION,
        MULTILABEL,
        REGRESSION,
        TOKENS,
        FORECAST,
        NEXT_TOKEN,
        MASKED_TOKEN,
        SEQ2SEQ,
    )
}
"""Kinds of user data by name."""
