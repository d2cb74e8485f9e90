"""Class methods of `Task` that create a task from user data.

`rifflemix.lab.tasks.own` implements them. It depends on `Task` and registers its functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rifflemix.lab.tasks.core.base import Task

MAKERS: dict[str, Callable[..., Any]] = {}
"""Class method name -> implementation."""

DEFAULT_SPLIT = (0.6, 0.2, 0.2)


class OwnData:
    """Class methods that create a task from arrays, data sets and files."""

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        lengths: Any = None,
        split: Any = DEFAULT_SPLIT,
        seed: int = 0,
        kind: str = "auto",
        groups: Any = None,
        max_length: int | None = None,
        drop_empty: bool = False,
        patch_size: int | None = None,
        layout: str = "sequence",
        name: str = "arrays",
    ) -> Task:
        """Create a task from arrays (NumPy, torch, pandas) or lists.

        Shape and type of `x` determine the kind of samples:

        - Tokens: integers (M, N) from 0.
        - Sequences of vectors: floats (M, N, F), or (M, N) for F = 1. The values are not rescaled.
          Models learn best from features with mean 0 and standard deviation 1.
        - Images: integers (M, H, W) from 0 to 255, or numbers (M, H, W, 1 to 4). Channels are
          standardized with the mean and standard deviation of the training split.
        - Texts: M strings, read as UTF-8 bytes.
        - Sequences of unequal length: a list of M arrays (N,) or (N, F).

        Args:
            x: Samples.
            y: M labels. Integers, bools and strings are classes. Floats are regression targets.
            lengths: (M,) number of valid tokens of each sample. The rest is padding.
            split: Shares of train, validation and test; or M names "train", "validation", "test";
                or a mapping from these names to indices.
            seed: Seed that draws the splits.
            kind: "classification", "regression", or "auto" to decide by the type of `y`.
            groups: M values. Samples of one group (a patient, a document) stay in one split.
            max_length: Maximum length. Longer sequences are cut, and the results report it.
            drop_empty: If True, drop empty texts, empty sequences and samples of length 0, and
                report their number in the results. If False, raise for them.
            patch_size: Side of the image patches. Default: the smallest size with at most 256
                patches.
            layout: "sequence", or "image" for models of whole images.
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
        return _make(
            "from_arrays", x, y, lengths=lengths, split=split, seed=seed, kind=kind, groups=groups,
            max_length=max_length, drop_empty=drop_empty, patch_size=patch_size, layout=layout,
            name=name,
        )  # fmt: skip

    @classmethod
    def from_datasets(
        cls, data: Any, *, input: str, label: str, group: str | None = None, **options: Any
    ) -> Task:
        """Create a task from a loaded `Dataset` or `DatasetDict` of Hugging Face.

        Args:
            data: One data set to split, or a mapping from split names to data sets. A missing
                validation split is drawn from the training samples. A missing or unlabeled (-1)
                test split is drawn from the available samples.
            input: Column of texts, tokens, vectors or images.
            label: Column of labels.
            group: Column of groups.
            options: Further arguments of `from_arrays`.

        Raises:
            InputError: A column or split is missing, or any case of `from_arrays`.
        """
        return _make("from_datasets", data, input=input, label=label, group=group, **options)

    @classmethod
    def from_hf(
        cls,
        name: str,
        *,
        revision: str,
        input: str,
        label: str,
        config: str | None = None,
        **options: Any,
    ) -> Task:
        """Create a task from a Hugging Face data set at one commit.

        Args:
            name: Repository as owner/name.
            revision: Commit of 40 hexadecimal digits. Branch names are refused because they move.
            input: Column of inputs.
            label: Column of labels.
            config: Configuration of the data set, if it has several.
            options: Further arguments of `from_datasets`.

        Raises:
            InputError: The revision is not a commit, the `datasets` library or a network is
                missing, or any case of `from_datasets`.
        """
        return _make(
            "from_hf", name, revision=revision, input=input, label=label, config=config, **options
        )

    @classmethod
    def from_csv(
        cls,
        path: str | PathLike[str],
        *,
        input: str | Sequence[str],
        label: str,
        group: str | None = None,
        split: Any = DEFAULT_SPLIT,
        **options: Any,
    ) -> Task:
        """Create a task from a .csv, .tsv or .jsonl table with header.

        The file can be compressed as .gz or .xz.

        Args:
            path: Path of the file.
            input: Column of texts, or several columns of numbers. Several columns form a sequence
                with one number per column. In .jsonl files, a column can also contain lists of
                numbers.
            label: Column of labels. Numbers with a decimal point are regression targets. NA and
                similar texts are missing values.
            group: Column of groups.
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
        return _make(
            "from_csv", path, input=input, label=label, group=group, split=split, **options
        )

    @classmethod
    def from_folder(cls, path: str | PathLike[str], **options: Any) -> Task:
        """Create a task from a folder of .npz, .jsonl or image files.

        Args:
            path: Folder with train.npz or train.jsonl and optional further splits, or with one
                folder of images per class. Task `image_folder` reads the images.
            options: Names of arrays in .npz files: `input` ("x"), `label` ("y") and `lengths`
                ("lengths" if the file contains it). Names of columns in .jsonl files. Further
                arguments of `from_arrays`, or options of task `image_folder` for images.

        Raises:
            InputError: The folder has no such files, a file is damaged, or any case of
                `from_arrays`.
        """
        return _make("from_folder", path, **options)


def _make(maker: str, *args: Any, **options: Any) -> Task:
    task: Task = MAKERS[maker](*args, **options)
    return task
