"""Class methods of `Task` that create a task from user data.

`rifflemix.lab.tasks.user_data` implements them. That subpackage depends on
`Task`, so it registers its functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self

MAKERS: dict[str, Callable[..., Any]] = {}
"""Class method name -> implementation."""

DEFAULT_SPLIT = (0.6, 0.2, 0.2)


class FromUserData:
    """Class methods that create a task from arrays, data sets and files."""

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        split: Any = DEFAULT_SPLIT,
        seed: int = 0,
        kind: str = "auto",
        groups: Any = None,
        times: Any = None,
        folds: int | None = None,
        fold: int | None = None,
        max_length: int | None = None,
        drop_empty: bool = False,
        patch_size: int | None = None,
        layout: str = "sequence",
        frame: int | None = None,
        hop: int | None = None,
        missing: str = "error",
        normalize: bool = False,
        tokenizer: str = "bytes",
        truncate: str = "head",
        context: int | None = None,
        horizon: int | None = None,
        season: int | None = None,
        known: Any = None,
        name: str = "arrays",
    ) -> Self:
        """Create a task from arrays (NumPy, torch, pandas) or lists.

        Shape and type of `x` determine the kind of samples:

        - Tokens: integers (M, N) from 0.
        - Sequences of vectors: floats (M, N, F), or (M, N) for F = 1. The values are rescaled
          only with `normalize`. Models learn best from features with mean 0 and deviation 1.
        - Images: integers (M, H, W) from 0 to 255, or numbers (M, H, W, 1 to 4). Channels are
          standardized with the mean and standard deviation of the training split.
        - Texts: M strings, read as UTF-8 bytes or with `tokenizer`.
        - Sequences of unequal length: a list of M arrays (N,) or (N, F).
        - Recordings: a list of M `pathlib.Path` of .wav, .flac or .npy files.

        Args:
            x: Samples.
            y: M labels: classes (integers, bools or strings), numbers (floats), (M, T) several
                numbers, (M, K) 0 and 1 or lists of names for several labels per sample, lists of
                classes for one class per token, or sequences to write (seq2seq). None for
                forecasts, next tokens and masked tokens.
            lengths: (M,) number of valid tokens of each sample. The rest is padding.
            split: Shares of train, validation and test; or M names "train", "validation", "test";
                or a mapping from these names to indices.
            seed: Seed that draws the splits.
            kind: "classification", "multilabel", "regression", "tokens", "forecast", "next_token",
                "masked_token" or "seq2seq". "auto" decides by the type of `y`, and the card of
                the task contains the reason.
            groups: M values. Samples of one group (a patient, a document) stay in one split.
            times: M numbers or dates. The earliest samples are the training split, the latest the
                test split.
            folds: Number K of folds, at least 3. `rm.compare` trains every mixer once per seed and
                fold. Fold k is the test split, and the next fold is the validation split. With
                `times`, fold k trains on the periods before its validation split.
            fold: Fold to use, 0 to K - 1. None for all.
            max_length: Maximum length. Longer sequences are cut, and the results report it.
            drop_empty: If True, drop empty texts, empty sequences and samples of length 0, and
                report their number in the results. If False, raise for them.
            patch_size: Side of the image patches. Default: the smallest size with at most 256
                patches.
            layout: "sequence", or "image" for models of whole images.
            frame: Steps of a series in one vector, such as 400 for audio. None for 1.
            hop: Steps between the starts of two vectors. None for `frame`.
            missing: "error" refuses NaN in series. "mask" replaces NaN by the mean of its channel
                and adds a channel that is 1 at missing values.
            normalize: If True, scale each channel of a series with the mean and the standard
                deviation of the training split.
            tokenizer: Tokenizer of texts. "bytes"; "words" or "words:SIZE" for lower-case words
                and punctuation; "bpe:SIZE" for byte pairs; or the path of a tokenizer.json of the
                `tokenizers` library. Words and byte pairs are learned from the training split.
                Kinds that write texts, and "tokens", need a byte-level BPE. "tokens" uses "words"
                by default.
            truncate: Part of a sequence over `max_length` that is kept: "head", "tail", or "both"
                for half of the tokens from each end.
            context: Number of steps that a forecast reads. `x` is then a series (time, channels)
                or a list of series. `groups` can name the series of each step. No window contains
                steps of two series.
            horizon: Number of steps that a forecast predicts.
            season: Number of steps of a season, for the metric "mase" and the reference forecast.
                Default: 1.
            known: Channels of a forecast that are known in advance, such as holidays: their
                numbers, or names of input columns. Models read them over the horizon too, and
                predict the other channels.
            name: Task name for tables.

        Raises:
            InputError: Shapes do not match, values are NaN, labels are missing or too few, a split
                is empty, or a group is in two splits.

        Example:
            >>> import numpy as np, rifflemix as rm
            >>> x = np.random.default_rng(0).normal(size=(100, 12, 3))
            >>> task = rm.Task.from_arrays(x, x.mean(axis=(1, 2)) > 0)
            >>> len(task.split("train")), task.num_classes
            (60, 2)
        """
        return cls._make(
            "from_arrays", x, y, lengths=lengths, split=split, seed=seed, kind=kind, groups=groups,
            times=times, folds=folds, fold=fold, max_length=max_length, drop_empty=drop_empty,
            patch_size=patch_size, layout=layout, frame=frame, hop=hop, missing=missing,
            normalize=normalize, tokenizer=tokenizer, truncate=truncate, context=context,
            horizon=horizon, season=season, known=known, name=name,
        )  # fmt: skip

    @classmethod
    def from_datasets(
        cls,
        data: Any,
        *,
        input: str | Sequence[str],
        label: str | Sequence[str] | None = None,
        group: str | None = None,
        **options: Any,
    ) -> Self:
        """Create a task from a loaded `Dataset` or `DatasetDict` of Hugging Face.

        Args:
            data: One data set to split, or a mapping from split names to data sets. A missing
                validation split is drawn from the training samples. A missing or unlabeled (-1)
                test split is drawn from the available samples.
            input: Column of texts, tokens, vectors or images; or several columns of numbers.
            label: Column of labels, or several. None if the kind needs no labels.
            group: Column of groups.
            time: Column of times.
            options: Further arguments of `from_arrays`.

        Raises:
            InputError: A column or split is missing, or any case of `from_arrays`.
        """
        return cls._make("from_datasets", data, input=input, label=label, group=group, **options)

    @classmethod
    def from_hf(
        cls,
        name: str,
        *,
        revision: str,
        input: str | Sequence[str],
        label: str | Sequence[str] | None = None,
        config: str | None = None,
        **options: Any,
    ) -> Self:
        """Create a task from a Hugging Face data set at one commit.

        Args:
            name: Repository as owner/name.
            revision: Commit of 40 hexadecimal digits. Branch names are refused because they move.
            input: Column of inputs, or several columns of numbers.
            label: Column of labels, or several. None if the kind needs no labels.
            config: Configuration of the data set, if it has several.
            options: Further arguments of `from_datasets`.

        Raises:
            InputError: The revision is not a commit, the `datasets` library or a network is
                missing, or any case of `from_datasets`.
        """
        return cls._make(
            "from_hf", name, revision=revision, input=input, label=label, config=config, **options
        )

    @classmethod
    def from_csv(
        cls,
        path: str | PathLike[str],
        *,
        input: str | Sequence[str],
        label: str | Sequence[str] | None = None,
        group: str | None = None,
        time: str | None = None,
        split: Any = DEFAULT_SPLIT,
        **options: Any,
    ) -> Self:
        """Create a task from a .csv, .tsv or .jsonl table with header.

        The file can be compressed as .gz or .xz.

        Args:
            path: Path of the file.
            input: Column of texts, or several columns of numbers. Several columns form a sequence
                with one number per column. In .jsonl files, a column can also contain lists of
                numbers.
            label: Column of labels. Numbers with a decimal point are regression targets. NA and
                similar texts are missing values. Several columns are several numbers, or labels
                of 0 and 1. A cell with several labels separates them by spaces, ";" or "|". None
                if the kind needs no labels.
            group: Column of groups. For forecasts, the series of each row.
            time: Column of times.
            split: Same as in `from_arrays`, or the name of a column of split names.
            options: Further arguments of `from_arrays`.

        Raises:
            InputError: The file is damaged, a column or value is missing, or any case of
                `from_arrays`.

        Example:
            >>> import os, pathlib, rifflemix as rm
            >>> lines = ["text,label", *(f"review {i},{i % 2}" for i in range(20))]
            >>> _ = pathlib.Path("reviews.csv").write_text(os.linesep.join(lines))
            >>> task = rm.Task.from_csv("reviews.csv", input="text", label="label")
            >>> len(task.split("train"))
            12
        """
        return cls._make(
            "from_csv",
            path,
            input=input,
            label=label,
            group=group,
            time=time,
            split=split,
            **options,
        )

    @classmethod
    def from_folder(cls, path: str | PathLike[str], **options: Any) -> Self:
        """Create a task from a folder of tables, arrays, images or recordings.

        Args:
            path: Folder with train.npz, train.jsonl or train.csv and optional further splits, or
                with one folder per class of images or recordings (.wav, .flac, .npy). Task
                `image_folder` reads the images. For forecasts, tables with other names are one
                series each.
            options: Names of arrays in .npz files: `input` ("x"), `label` ("y") and `lengths`
                ("lengths" if the file contains it). Names of columns in tables. Further
                arguments of `from_arrays`, or options of task `image_folder` for images.

        Raises:
            InputError: The folder has no such files, a file is damaged, or any case of
                `from_arrays`.
        """
        return cls._make("from_folder", path, **options)

    @classmethod
    def _make(cls, maker: str, *args: Any, **options: Any) -> Self:
        return MAKERS[maker](*args, **options)
