"""Kinds of tasks, metrics of a whole split, and standard errors of ratios."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import require_packages

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


MOST_CLASSES = 1000
"""Largest number of classes with AUROC and average precision. Both sort every class."""

IMBALANCED = 0.8
"""Smallest share of the most frequent class that is reported."""

MOST_SHOWN = 50
"""Largest number of classes with a confusion matrix, and with the metrics "f1:NAME"."""

OF_CLASS = "f1:"
"""Start of the name of a metric of one class."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


def class_scores(labels: Ints, probabilities: Floats) -> dict[str, float]:
    """Compute metrics of one class per sample.

    "f1_macro" is the mean F1 over all true or predicted classes. "auroc" and "average_precision"
    compare a class with the others, and are means over the classes of the split. With two classes
    they are metrics of the second class. Metrics of a split with one class are left out.

    Args:
        labels: (M,) true classes.
        probabilities: (M, K).
    """
    found = predicted_scores(labels, probabilities.argmax(axis=1))
    number = probabilities.shape[1]
    if number > MOST_CLASSES:
        return found
    columns = np.array([1]) if number == 2 else np.arange(number)
    truths = labels[:, None] == columns
    return found | _ranking(truths, probabilities[:, columns])


def predicted_scores(labels: Ints, predicted: Ints) -> dict[str, float]:
    """Compute "balanced_accuracy" and "f1_macro" of predicted classes (M,).

    "balanced_accuracy" is the mean recall of the classes of the split.
    """
    metrics = _library()
    with warnings.catch_warnings():
        # scikit-learn warns about predicted classes that the split does not contain.
        warnings.simplefilter("ignore")
        return {
            "balanced_accuracy": float(metrics.balanced_accuracy_score(labels, predicted)),
            "f1_macro": float(
                metrics.f1_score(labels, predicted, average="macro", zero_division=0)
            ),
        }


def multilabel_scores(truths: Bools, probabilities: Floats) -> dict[str, float]:
    """Compute metrics of label sets (M, K).

    "f1_macro" is the mean F1 over all labels. "auroc" and "average_precision" are means over the
    labels that some but not all samples have.
    """
    f1 = _library().f1_score(truths, probabilities > 0.5, average="macro", zero_division=0)
    return {"f1_macro": float(f1), **_ranking(truths, probabilities)}


def f1_of_class(truths: Bools, predicted: Bools) -> float:
    """Compute the F1 of one class, of true and predicted samples (M,)."""
    return float(_library().f1_score(truths, predicted, zero_division=0))


def confusion(labels: Ints, predicted: Ints, number: int) -> list[list[int]]:
    """Count samples by true class (rows) and predicted class (columns)."""
    counts = np.bincount(labels * number + predicted, minlength=number**2)
    return counts.reshape(number, number).tolist()


def _ranking(truths: Bools, scores: Floats) -> dict[str, float]:
    """Compute mean AUROC and average precision over the columns with both truths."""
    metrics = _library()
    both = truths.any(axis=0) & ~truths.all(axis=0)
    if not both.any():
        return {}
    truths, scores = truths[:, both], scores[:, both]
    if truths.shape[1] == 1:
        truths, scores = truths[:, 0], scores[:, 0]
    # A call for all columns takes half the time of a call for each column.
    return {
        "auroc": float(np.mean(metrics.roc_auc_score(truths, scores, average=None))),
        "average_precision": float(
            np.mean(metrics.average_precision_score(truths, scores, average=None))
        ),
    }


def _library() -> Any:
    require_packages("metrics of whole splits", "compare", "sklearn")
    import sklearn.metrics

    return sklearn.metrics


def ratio_moments(right: Tensor, parts: Tensor) -> dict[str, tuple[float, int]]:
    """Compute the moments for `ratio_deviation`.

    Args:
        right: (B,) number of correct parts of each sample.
        parts: (B,) number of parts of each sample.
    """
    hits, sizes = right.double(), parts.double()
    sums = {
        "_parts": sizes,
        "_right_square": hits.square(),
        "_right_parts": hits * sizes,
        "_parts_square": sizes.square(),
    }
    return {name: (float(values.sum().item()), len(sizes)) for name, values in sums.items()}


def ratio_deviation(share: float, means: Mapping[str, float]) -> float | None:
    """Compute the standard error of a share times sqrt(number of samples).

    Return None without moments. Samples are drawn together with all their parts. The error is the
    linearized error of a ratio of two sums (Cochran 1977, Sampling Techniques, chapter 6).
    """
    if not means.get("_parts"):
        return None
    square = means["_right_square"] - 2 * share * means["_right_parts"]
    square += share**2 * means["_parts_square"]
    return math.sqrt(max(square, 0.0)) / means["_parts"]
