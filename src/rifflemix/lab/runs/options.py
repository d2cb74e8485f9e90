"""Declarations of run options: help text, names and bounds; the processes of torchrun.

The command line builds its options from these declarations. Configurations use them for checks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from rifflemix.errors import bad_argument

# Larger numbers are most likely typing errors.
MOST_THREADS = MOST_WORKERS = 1_024
_MOST_LAYERS, _MOST_WIDTH = 1_000, 65_536

PRECISIONS = {"float32": "no", "bf16": "bf16"}
"""Precision on the command line -> value of `TrainConfig.precision`."""


@dataclass(frozen=True)
class Option:
    """Help text and bounds of an option, declared in its type annotation.

    Attributes:
        help: help text in one line.
        names: names on the command line; if empty, "--" and the name of the field.
        metavar: placeholder of the value in the help; if None, the type.
        most: maximum of an integer option with minimum 1; if None, unbounded.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    most: int | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise InputError for option `name` unless `value` is unset or within the bounds."""
        if self.most is not None and value is not None and not 1 <= value <= self.most:
            raise bad_argument(name, f"1 to {self.most:,}", value)


Task = Annotated[str, Option("Task; see `rifflemix list tasks`.")]
Out = Annotated[Path, Option("Results folder, new or to be continued.", metavar="PATH")]
DataDir = Annotated[Path, Option("Folder of data files; it is only read.", metavar="PATH")]
MaxSteps = Annotated[
    int,
    Option(
        "Optimizer steps of each run; those of the task or recipe if unset.",
        ("--max-steps", "--steps"),
    ),
]
BatchSize = Annotated[int, Option("Sequences per step; those of the task or recipe if unset.")]
Dim = Annotated[int, Option("Channels of the backbone; by task if unset.", most=_MOST_WIDTH)]
Layers = Annotated[
    int, Option("Blocks of the backbone; by task if unset.", ("--layers",), most=_MOST_LAYERS)
]
Heads = Annotated[
    int,
    Option("Heads, where a mixer has them; by task if unset.", ("--heads",), most=_MOST_WIDTH),
]
TaskOptions = Annotated[list[str], Option("Option of the task; repeatable.", metavar="KEY=VALUE")]
OneSeed = Annotated[int | None, Option("One seed, in place of --seeds.")]
Seed = Annotated[int, Option("Seed of weights, data order and noise.")]
Mixer = Annotated[
    str, Option("Label of a mixer of the comparison, or point of the sweep; the best if unset.")
]
RunSeed = Annotated[int, Option("Seed of the run; the best if unset.")]
Device = Annotated[str, Option("cpu, cuda, cuda:1 ..., or auto.")]
Threads = Annotated[
    int, Option("CPU threads; trainings choose by the size of the model.", most=MOST_THREADS)
]
NumWorkers = Annotated[
    int, Option("Processes that load and change samples; 0 leaves both to the training.")
]
ContextParallel = Annotated[
    int, Option("Processes of torchrun that share each sequence, as accelerate's cp_size.")
]
Plugins = Annotated[
    list[str] | None,
    Option(
        "File of your own mixers, tasks, models, analyses or recipes; repeatable.",
        ("--plugin",),
        "FILE.py",
    ),
]
KeepWeights = Annotated[
    bool, Option("Keep the weights of every evaluation too, for what analyze shows over training.")
]
Json = Annotated[bool, Option("Print JSON on stdout and nothing else there.")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """User options for training mixers on a task; None uses the task's default."""

    max_steps: MaxSteps | None = None
    batch_size: BatchSize | None = None
    lr: Annotated[
        str | None,
        Option(
            "Peak learning rate, by task if unset; in compare, every mixer tries each of several, "
            "separated by commas.",
            metavar="NUMBER",
        ),
    ] = None
    dim: Dim | None = None
    num_layers: Layers | None = None
    num_heads: Heads | None = None
    model: Annotated[
        str | None, Option("Backbone; see `rifflemix list models`. By task if unset.")
    ] = None
    task_option: TaskOptions | None = None
    mixer_option: Annotated[
        list[str] | None, Option("Option of a mixer; repeatable.", metavar="MIXER.KEY=VALUE")
    ] = None
    model_option: Annotated[
        list[str] | None,
        Option(
            "Another setting of the backbone, such as short_conv=3; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None
    train_option: Annotated[
        list[str] | None,
        Option(
            "Another setting of the training, such as weight_decay=0.05; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None
    data_dir: DataDir | None = None
    data: Annotated[
        Path | None,
        Option("User data, for tasks csv, jsonl, parquet, fasta, npz and folder.", metavar="PATH"),
    ] = None
    input: Annotated[
        str | None, Option("Its column or array of inputs; several columns with commas.")
    ] = None
    label: Annotated[
        str | None, Option("Its column or array of labels; several columns with commas.")
    ] = None
    kind: Annotated[
        str | None,
        Option(
            "Kind of its labels: classification, multilabel, regression, tokens, forecast, "
            "next_token, masked_token or seq2seq; by the labels if unset."
        ),
    ] = None
    context: Annotated[int | None, Option("Steps that a forecast reads.")] = None
    horizon: Annotated[int | None, Option("Steps that a forecast predicts.")] = None
    folds: Annotated[
        int | None,
        Option("Number of folds: every mixer trains once per seed and fold.", metavar="NUMBER"),
    ] = None
    frame: Annotated[
        int | None, Option("Steps of a series in one vector, such as 400 samples of audio.")
    ] = None
    hop: Annotated[
        int | None, Option("Steps between the starts of two vectors; --frame if unset.")
    ] = None
    tokenizer: Annotated[
        str | None,
        Option("Tokenizer of its texts: bytes (if unset), words, bpe:SIZE, or a tokenizer file."),
    ] = None
    truncate: Annotated[
        str | None,
        Option("Part kept of sequences over max_length: head (if unset), tail or both."),
    ] = None
    device: Annotated[str | None, Option("cpu, cuda, cuda:1 ..., or auto, the default.")] = None
    precision: Annotated[str | None, Option("float32, the default, or bf16 (autocast).")] = None
    threads: Threads | None = None
    context_parallel: ContextParallel | None = None
    metric: Annotated[
        str | None,
        Option("Validation metric that selects weights and ranks mixers; the task's if unset."),
    ] = None
    compile: Annotated[bool, Option("Train through torch.compile.")] = False
    tracker: Annotated[
        str | None, Option("Log curves to tensorboard or wandb during the runs.")
    ] = None
    keep_weights: KeepWeights = False


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """User options for several processes that share the runs of a folder."""

    workers: Annotated[
        int | None,
        Option(
            "Processes that share the runs, one thread each if --threads is unset.",
            most=MOST_WORKERS,
        ),
    ] = None
    devices: Annotated[
        str | None,
        Option("GPUs of the workers, such as 0,1; workers take them in turn.", metavar="LIST"),
    ] = None
    slurm: Annotated[
        Path | None,
        Option("Submit the workers to Slurm as this file says.", metavar="FILE.toml"),
    ] = None
    shard: Annotated[
        str | None,
        Option("Make only part I of N parts of the runs, such as 1/4.", metavar="I/N"),
    ] = None
    dry_run: Annotated[
        bool, Option("Print every run with its estimated time and memory; train nothing.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """User options for running a recipe; None uses the recipe's value.

    Fewer updates shorten the schedule in proportion. Evaluations then never use more samples than
    the training between them.
    """

    data_dir: DataDir | None = None
    max_steps: MaxSteps | None = None
    scale: Annotated[float, Option("Factor of the model's widths, above 0 and at most 1.")] = 1.0
    batch_size: BatchSize | None = None
    seed: Seed = 0
    start_from: Annotated[
        Path | None,
        Option("Folder of another run, or of a saved model, to start from.", metavar="PATH"),
    ] = None
    device: Device = "auto"
    precision: Annotated[str | None, Option("float32 or bf16; the recipe's if unset.")] = None
    compile: Annotated[bool, Option("Use torch.compile.")] = False
    threads: Threads | None = None
    num_workers: NumWorkers = 0
    context_parallel: ContextParallel = 1
    keep_weights: KeepWeights = False
    weights: Annotated[
        str | None,
        Option("Weights whose test value counts, best or last; the recipe's if unset."),
    ] = None


def declared_options(owner: Any) -> dict[str, Option]:
    """Return the options that a class or function declares, by name."""
    found = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        for part in (hint, *get_args(hint)):  # the arguments are for Annotated[...] | None
            for extra in getattr(part, "__metadata__", ()):
                if isinstance(extra, Option):
                    found[name] = extra
    return found


def check_options(config: Any) -> None:
    """Raise InputError unless every attribute is within its declared bounds."""
    for name, option in declared_options(type(config)).items():
        option.check(name, getattr(config, name))


def is_main_process() -> bool:
    """Return whether this process has rank 0 and writes files and messages."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_many() -> bool:
    """Return whether torchrun started more than one process."""
    return count_processes() > 1


def count_processes() -> int:
    """Return the number of processes that torchrun started, including this process."""
    return int(os.environ.get("WORLD_SIZE", "1"))
