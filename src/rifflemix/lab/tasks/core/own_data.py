"""The ways from data of your own to a task: class methods of `Task`.

`rifflemix.lab.tasks.own` does the work. It depends on `Task` and registers its functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rifflemix.lab.tasks.core.base import Task

MAKERS: dict[str, Callable[..., Any]] = {}
"""Name of a class method -> the function behind it."""

DEFAULT_SPLIT = (0.6, 0.2, 0.2)


class OwnData:
    """Class methods that make a task from arrays, data sets and files."""

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
        """A task from samples and labels in memory: NumPy, torch, pandas or lists.

        Args:
            x: what the samples are is told by shape and type:
                tokens, integers (M, N) from 0;
                sequences of vectors, floats (M, N, F), or (M, N) for F = 1, taken as they are:
                models learn from features of about mean 0 and deviation 1;
                images, (M, H, W) integers from 0 to 255 or (M, H, W, 1 to 4) numbers, brought to
                mean 0 and deviation 1 by channel, both of the training split;
                texts, M strings, read as UTF-8 bytes;
                lists of M sequences of unequal length, (N,) or (N, F).
            y: M labels. Integers, bools and strings are classes, floats are numbers to predict.
            lengths: (M,) valid tokens of each row of x; the rest is padding.
            split: shares of train, validation and test; or M names "train", "validation", "test";
                or a mapping from these names to indices.
            seed: of the draw of the splits.
            kind: "classification" or "regression" where the type of y does not say; "auto".
            groups: M values; samples of one group (a patient, a document) stay in one split.
            max_length: longer sequences are cut to it, which the results say.
            drop_empty: leave out empty texts, empty sequences and rows of length 0, with their
                labels; the results contain their number. Otherwise they raise.
            patch_size: side of the patches that images are cut to; by default the smallest that
                leaves at most 256.
            layout: "sequence", or "image" for models of whole images.
            name: of the task, in tables.

        Raises:
            InputError: shapes that do not fit, NaN, labels that are missing or too few, a split
                without samples, a group in two splits.
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
        """A task from a `Dataset` or `DatasetDict` of the Hugging Face library, already loaded.

        Args:
            data: one data set, which is split here, or a mapping from split names to data sets. A
                validation split that is missing is drawn from the training samples; a test split
                that is missing or without labels (-1) from what is there.
            input: column of texts, tokens, vectors or images.
            label: column of labels.
            group: column of groups.
            options: as for `from_arrays`.

        Raises:
            InputError: a missing column or split, and as `from_arrays`.
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
        """A task from a data set of the Hugging Face hub, as it was at one commit.

        Args:
            name: owner/name of the repository.
            revision: the commit, 40 hexadecimal digits: names of branches move.
            input: column of the inputs.
            label: column of the labels.
            config: of the data set, where it has several.
            options: as for `from_datasets`.

        Raises:
            InputError: no commit, the `datasets` library or a network is missing, and as
                `from_datasets`.
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
        """A task from a table with a header: .csv, .tsv, .jsonl, each also .gz or .xz.

        Args:
            path: of the file.
            input: column of texts (in JSON lines, also of lists of numbers), or several columns
                of numbers, which make a sequence of one number each.
            label: column of labels. Numbers with a decimal point are regression, NA and the
                like are missing.
            group: column of groups.
            split: as for `from_arrays`, or the name of a column of split names.
            options: as for `from_arrays`.

        Raises:
            InputError: a damaged file, a missing column or value, and as `from_arrays`.
        """
        return _make(
            "from_csv", path, input=input, label=label, group=group, split=split, **options
        )

    @classmethod
    def from_folder(cls, path: str | PathLike[str], **options: Any) -> Task:
        """A task from a folder: train, validation and test as .npz or .jsonl files, or images.

        Args:
            path: a folder with train.npz, or train.jsonl, and more splits; or with a folder of
                images for each class, which task `image_folder` reads.
            options: of .npz files the names of their arrays: `input` ("x"), `label` ("y") and
                `lengths` ("lengths" if the file has it); of .jsonl files the names of columns.
                Further options are those of `from_arrays`, or of task `image_folder` for images.

        Raises:
            InputError: none of these files, damaged ones, and as `from_arrays`.
        """
        return _make("from_folder", path, **options)


def _make(maker: str, *args: Any, **options: Any) -> Task:
    task: Task = MAKERS[maker](*args, **options)
    return task
