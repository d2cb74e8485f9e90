"""`TrainedRun`: a trained model with the conversion of its inputs and the names of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.card import InputSpec, TaskRecord
from rifflemix.lab.trained.export import export_model, save_for_transformers
from rifflemix.lab.trained.predict import generate, predict, probabilities, stack_inputs
from rifflemix.models import Model


@dataclass(frozen=True, eq=False, repr=False)
class TrainedRun:
    """A trained model and what its inputs and outputs mean.

    Attributes:
        folder: folder of the run.
        model: the model, in evaluation mode. Move it to another device to predict there.
        task: sizes and names of the task.
        metrics: metrics of the chosen weights on the splits "validation" and "test".
        inputs: conversion of raw inputs. None if the task does not describe it.

    Example:
        >>> import rifflemix as rm
        >>> texts = [f"{word} film {n}" for n in range(40) for word in ("great", "dull")]
        >>> task = rm.Task.from_arrays(texts, ["good", "bad"] * 40)
        >>> _ = rm.compare(task, ["csp"], out="runs/films", max_steps=20, batch_size=20)
        >>> run = rm.load_run("runs/films")
        >>> run.classes, run.predict_proba(["a film", "dull"]).shape
        (('bad', 'good'), (2, 2))
    """

    folder: Path
    model: Model
    task: TaskRecord
    metrics: Mapping[str, Mapping[str, float]]
    inputs: InputSpec | None

    def __repr__(self) -> str:
        return f"TrainedRun(folder={str(self.folder)!r}, task={self.task.name!r})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; empty for other tasks."""
        return self.task.classes

    def predict(self, inputs: Any) -> Any:
        """Predict the label of each input.

        An input does not affect the predictions of the others, and lengths may differ.

        Args:
            inputs: a collection of raw inputs of the task: texts, arrays, rows of numbers,
                images or paths of image files, or sequences of different lengths.

        Returns:
            - Classification: (M,) names of classes.
            - Classification of tokens: a list of M arrays (N,) of names, one per token or word.
            - Several labels: a list of M lists of names, each with a probability over 1/2.
            - Regression: (M,) float64 numbers, or (M, T), in the units of the training targets.
            - Forecasts: (M, horizon, channels) float64, in the units of the series.
            - Language models: (M,) text, or id, of the most likely next token.
            - Masked tokens: a list of M texts or arrays (N,), with the masked tokens filled in.
            - Sequence-to-sequence models: a list of M sequences.

        Raises:
            InputError: an input has another type or shape, is too long, or has unknown symbols.
        """
        return predict(self.model, self.task, self._spec(), self._samples(inputs))

    def generate(
        self,
        prompts: Any,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Any]:
        """Continue prompts with a language model, or write sequences from sources.

        A prompt has the same continuation alone and with others. The prompts may have different
        lengths. Models whose mixers stream process each token once.

        Args:
            prompts: as in `predict`: texts, beginnings of images as bytes, or source sequences.
            max_new_tokens: number of tokens to add. None continues up to the maximum length;
                sequence-to-sequence models then write at most as many tokens as they read.
            temperature: divisor of the logits; 0 always chooses the most likely token. By default
                1, or 0 for sequence-to-sequence models, whose decoding is greedy.
            top_k: sample from the k most likely tokens only.
            seed: seed of the samples.

        Returns:
            One entry per prompt: the text with its continuation, the image (H, W, C) uint8 or its
            beginning (N,), or the sequence of a source.

        Raises:
            InputError: as `predict`, an argument is out of range, there are too many tokens, or the
                model writes no sequences.

        Example:
            >>> import rifflemix as rm
            >>> options = {"num_train": 64, "num_validation": 8, "num_test": 8}
            >>> _ = rm.compare("sort", ["tssa"], out="runs/sort", max_steps=2, task_options=options)
            >>> len(rm.load_run("runs/sort").generate([[3, 1, 2]]))
            1
        """
        greedy = self.task.output == "sequence"
        return generate(
            self.model,
            self.task,
            self._spec(),
            prompts,
            max_new_tokens,
            temperature=float(not greedy) if temperature is None else temperature,
            top_k=top_k,
            seed=seed,
        )

    def predict_proba(self, inputs: Any) -> NDArray[Any] | list[NDArray[Any]]:
        """Predict the probability of each class, or of each next token.

        Args:
            inputs: as in `predict`.

        Returns:
            (M, K) float32 in the order of `classes`, or of the token ids. With several labels per
            sample, the probability of each label. With one class per
            token, a list of M arrays (N, K).

        Raises:
            InputError: as `predict`, or the model has no classes.
        """
        return probabilities(self.model, self.task, self._spec(), self._samples(inputs))

    def encode(self, inputs: Any) -> dict[str, NDArray[Any]]:
        """Convert inputs to arrays with the names of the exported model's inputs.

        Args:
            inputs: as in `predict`.

        Returns:
            "inputs", and "key_padding_mask" if lengths may differ: True marks padding. Graphs also
            have "distances" and "path_edges". Sequence-to-sequence models have "decoder_inputs",
            the start token of each sequence.

        Raises:
            InputError: as `predict`.
        """
        batch = stack_inputs(self.task, self._samples(inputs))
        if self.task.output == "sequence":
            start = getattr(self._spec(), "start_token", 0)
            batch["decoder_inputs"] = torch.full((len(batch["inputs"]), 1), start)
        return {name: tensor.numpy() for name, tensor in batch.items()}

    def export_onnx(self, file: str | PathLike[str]) -> list[Path]:
        """Export the model to ONNX, for any batch size and any length up to `max_length`.

        The inputs of the graph have the names and types of `encode`. The output is "logits":
        (B, K), or (B, N, V) for models that predict tokens. Numbers are standardized: multiply
        them by `task.target_std` and add `task.target_mean`. Both have one entry per target, or
        per channel of a forecast. The metadata of the file contain the names of the classes.

        A language model that streams also becomes a graph of one decoding step, in a second file
        with the ending .step.onnx. Its metadata describe the tensors of the state. If no graph of
        the mixer reads whole sequences of any length, only this second file is written. If a model
        has only one of the two files, the other file of an earlier export is removed.

        Args:
            file: path of the file, usually with the ending .onnx.

        Returns:
            The paths of the written files.

        Raises:
            InputError: the mixer has no ONNX form and does not stream, a package is missing, or the
                file cannot be written.
        """
        return export_model(self.model, self.task, user_path("file", file))

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the model and the names of its classes for the Auto classes of transformers.

        After `rm.register_hf()`, `AutoModelForSequenceClassification.from_pretrained` loads
        classifiers of token ids, `AutoModelForImageClassification` classifiers of images, and
        `AutoModelForCausalLM` language models. Logits of regression models are standardized: the
        configuration contains `target_mean` and `target_std`.

        Args:
            folder: folder of the model, created if it does not exist.

        Raises:
            InputError: transformers is not installed, the folder cannot be written, or no Auto
                class accepts the inputs of the model.
        """
        save_for_transformers(self.model, self.task, user_path("folder", folder))

    def _samples(self, inputs: Any) -> list[Any]:
        return self._spec().encode(inputs)

    def _spec(self) -> InputSpec:
        if self.inputs is None:
            raise InputError(
                f"task {self.task.name} does not describe its raw inputs (Task.inputs is None); "
                "call .model on its batches"
            )
        return self.inputs
