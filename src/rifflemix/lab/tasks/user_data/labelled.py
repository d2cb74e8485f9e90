"""Tasks with labels: classes, label sets, numbers, or one class per token."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputWarning, bad_argument
from rifflemix.lab.tasks.core.arrays import SequenceInputs, plain_array
from rifflemix.lab.tasks.core.base import SPLITS, Task
from rifflemix.lab.tasks.core.card import InputSpec, TaskCard
from rifflemix.lab.tasks.core.kinds import (
    CLASSIFICATION,
    IMBALANCED,
    MULTILABEL,
    REGRESSION,
    TOKENS,
)
from rifflemix.lab.tasks.core.numbers import MultilabelTask, NumberTask
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED, TokenLabelTask
from rifflemix.lab.tasks.data_io.columns import Column
from rifflemix.lab.tasks.images.pixels import WholeImages
from rifflemix.lab.tasks.text.encoder import TextEncoder, TextInputs
from rifflemix.lab.tasks.user_data.choose_kind import Choice, Origin
from rifflemix.lab.tasks.user_data.labels import Labels, check_token_counts, cut_to_lengths
from rifflemix.lab.tasks.user_data.prepared import labels_and_splits, prepared_samples
from rifflemix.lab.tasks.user_data.samples import (
    MOST_TOKENS,
    Reading,
    Samples,
    TextsOf,
    read_samples,
    sample_hashes,
)
from rifflemix.lab.tasks.user_data.series_options import SeriesOptions, cut_count, series_shape
from rifflemix.lab.tasks.user_data.splits import ImageOptions, UserSplit, image_shape, patch_size
from rifflemix.lab.tasks.user_data.splitting import Division, Given
from rifflemix.lab.tasks.user_data.tokenizing import (
    TextOptions,
    WordInputs,
    choose_encoder,
    encode_words,
    label_word_starts,
    read_words,
    word_encoder,
)


def warn_of_imbalance(labels: Labels, division: Division, task: str) -> None:
    """Warn if most training samples, or tokens, have the same class."""
    if labels.kind in (REGRESSION, MULTILABEL):
        return
    counts = _counts(labels, division)
    share = counts.max() / counts.sum()
    if share >= IMBALANCED:
        what = "tokens" if labels.kind is TOKENS else "samples"
        balanced = "compare mixers by metric 'balanced_accuracy'"
        if labels.kind is not TOKENS:
            balanced += ", or train with class_weights='balanced'"
        warnings.warn(
            f"task {task}: class {labels.classes[int(counts.argmax())]!r} has {share:.1%} of the "
            f"training {what}; {balanced}",
            InputWarning,
            stacklevel=6,
        )


def _counts(labels: Labels, division: Division) -> np.ndarray:
    values = labels.values[division.rows["train"]]
    if labels.kind is TOKENS:
        values = np.concatenate(list(values))
        values = values[values != UNCOUNTED]
    return np.bincount(values, minlength=len(labels.classes))


def labelled_task(
    given: Given,
    choice: Choice,
    images: ImageOptions,
    texts: TextOptions,
    series: SeriesOptions,
    seed: int,
    origin: Origin,
) -> Task:
    """Create a task from samples with labels."""
    kind, y = choice.kind, given.y
    if kind is TOKENS and given.lengths is not None:
        y = cut_to_lengths(y, plain_array(given.lengths))
    labels, division = labels_and_splits(replace(given, y=y), kind, seed)
    words = read_words(given.x) if kind is TOKENS else None
    if words is None:
        samples, encoder = _read(given, division, texts, series), None
    else:
        encoder = word_encoder(words, division.rows["train"], texts.tokenizer)
        samples = encode_words(words, encoder)
    if kind is TOKENS or samples.kind != "vectors":
        series.check_unused(kind.name if kind is TOKENS else samples.kind)
    if kind is TOKENS:
        texts.check_whole(kind.name)
        _check_tokens(samples, labels, texts.max_length, words)
        if encoder is not None:
            moved = label_word_starts(labels.values, samples, encoder)
            labels = replace(labels, values=moved)
    options = {
        **origin.options,
        "kind": kind.name,
        **texts.recorded(),
        **series.recorded(),
        **({"drop_empty": True} if given.dropped else {}),
    }
    if samples.kind == "images":
        patch = patch_size(samples, images)
        options |= {"layout": images.layout} | ({} if patch is None else {"patch_size": patch})
        shape = image_shape(samples, division, labels, patch)
    else:
        images.check_unused(samples.kind)
    if samples.kind == "vectors" and series.is_used:
        shape = series_shape(samples, division, labels, series, texts, origin.columns)
        samples = replace(samples, cut=cut_count(samples, series, texts.max_length))
    elif samples.kind != "images":
        inputs = _inputs(samples, encoder, texts, origin.columns)
        shape = _shape(samples, division, labels, inputs)
    if words is None:
        hashes = sample_hashes(samples)
    else:
        hashes = np.array([hash(" ".join(row)) for row in words])
    note = _note(samples, hashes, division, texts.max_length, origin)
    if given.dropped:
        note += f"; {given.dropped:,} empty samples left out"
    warn_of_imbalance(labels, division, origin.name)
    return _task(
        samples, labels, division, {**shape, "options": options, "split_note": note}, origin, choice
    )


def _read(given: Given, division: Division, options: TextOptions, series: SeriesOptions) -> Samples:
    """Read the samples. The tokenizer of texts is learned from the training texts."""

    def encoder(texts: TextsOf) -> TextEncoder:
        return choose_encoder(options.tokenizer, lambda: texts(division.rows["train"]))

    has_gaps, learned = series.missing == "mask", options.learned(division.rows["train"])
    how = Reading(options.max_length, options.truncate, series.is_used, has_gaps, encoder, learned)
    if isinstance(given.x, Column):
        samples = prepared_samples(given.x, how)
    else:
        samples = read_samples(given.x, given.lengths, how)
    if samples.encoder is None:
        options.check_no_texts()
    return samples


def _check_tokens(
    samples: Samples, labels: Labels, most: int | None, words: list[list[str]] | None
) -> None:
    if samples.kind == "images":
        raise bad_argument("kind", "another kind for images", "'tokens'")
    too_long = samples.cut or int((samples.lengths > (most or MOST_TOKENS)).sum())
    if too_long:
        raise bad_argument(
            "max_length", f"no sequence over max_length with kind {TOKENS.name!r}",
            f"{too_long:,} longer than {most or MOST_TOKENS:,}",
            "split long sequences into several samples",
        )  # fmt: skip
    if words is None:
        check_token_counts(labels.values, samples.lengths, "tokens")
    else:
        check_token_counts(labels.values, np.array([len(row) for row in words]), "words")


def _note(
    samples: Samples,
    hashes: NDArray[np.int64],
    division: Division,
    most: int | None,
    origin: Origin,
) -> str:
    """Describe the origin and problems of the splits.

    Warn about duplicates across splits.
    """
    notes = [origin.split_note or division.note, *division.duplicates(hashes, origin.name)]
    if samples.cut:
        what = "texts" if samples.encoder else "samples"
        cut = f"{samples.cut:,} of {len(samples):,} {what} are longer than max_length ({most:,})"
        notes.append(f"{cut} and are cut")
        warnings.warn(f"task {origin.name}: {cut}; they are cut", InputWarning, stacklevel=6)
    return "; ".join(notes)


def _task(
    samples: Samples,
    labels: Labels,
    division: Division,
    shape: Mapping[str, Any],
    origin: Origin,
    choice: Choice,
) -> Task:
    kind = choice.kind
    cls = _TASKS[kind.name]
    if shape.get("image_shape") is not None:
        if kind is not CLASSIFICATION:
            raise bad_argument("layout", f"'sequence' with kind {kind.name!r}", "'image'")
        cls = WholeImages
    outputs = len(labels.classes)
    if kind is REGRESSION:
        shape = {**shape, **_scale(labels.values[division.rows["train"]])}
        outputs = 1 if labels.values.ndim == 1 else labels.values.shape[1]
    return cls(
        name=origin.name,
        num_classes=outputs,
        classes=labels.classes,
        data_source=origin.data_source,
        card=_card(samples, labels, division, origin, choice),
        metric=kind.metric,
        higher_is_better=kind.metrics[kind.metric],
        **shape,
    )


_TASKS: Mapping[str, type[Task]] = {
    CLASSIFICATION.name: Task,
    MULTILABEL.name: MultilabelTask,
    REGRESSION.name: NumberTask,
    TOKENS.name: TokenLabelTask,
}


def _scale(train: np.ndarray) -> dict[str, Any]:
    """Return mean and standard deviation of the training targets (M,) or (M, T).

    A deviation of 0 becomes 1.
    """
    mean, std = train.mean(axis=0), train.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    several = train.ndim > 1
    return {
        "target_mean": tuple(mean.tolist()) if several else float(mean),
        "target_std": tuple(std.tolist()) if several else float(std),
    }


def _card(
    samples: Samples, labels: Labels, division: Division, origin: Origin, choice: Choice
) -> TaskCard:
    what = f", {len(labels.classes)} classes" if labels.classes else ""
    data, train = f"{len(samples):,} samples of {samples.kind}{what}", len(division.rows["train"])
    card = origin.card(choice.kind, data, train, reason=choice.reason)
    return replace(card, options={"layout": "sequence"}) if samples.kind == "images" else card


def _shape(
    samples: Samples, division: Division, labels: Labels, inputs: InputSpec
) -> dict[str, Any]:
    lengths = samples.lengths
    is_tokens = samples.kind == "tokens"
    return {
        "input_kind": samples.kind,
        "vocab_size": samples.vocab_size,
        "num_features": None if is_tokens else samples.values.shape[1],
        "max_length": int(lengths.max()),
        "padding": bool((lengths != lengths[0]).any()),
        "splits": {name: UserSplit(samples, labels, division.rows[name]) for name in SPLITS},
        "inputs": inputs,
    }


def _inputs(
    samples: Samples, words: TextEncoder | None, options: TextOptions, columns: tuple[str, ...]
) -> InputSpec:
    lengths, cuts = samples.lengths, options.max_length is not None
    longest, is_fixed = int(lengths.max()), bool((lengths == lengths[0]).all())
    truncate = options.truncate
    if words is not None:
        return WordInputs(words, longest, is_fixed, columns)
    if samples.encoder is not None:
        encoder = samples.encoder
        return TextInputs(encoder, longest, is_fixed, cuts, columns=columns, truncate=truncate)
    size = samples.vocab_size or samples.values.shape[1]
    of: Literal["tokens", "vectors"] = "tokens" if samples.vocab_size else "vectors"
    return SequenceInputs(of, size, longest, is_fixed, cuts, columns, truncate)
