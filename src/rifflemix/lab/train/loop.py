"""Train a model: check the arguments, open the run folder, run the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rifflemix.errors import check_choice
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.data import check_splits, loading_processes
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.optim import build_optimizer
from rifflemix.lab.train.protocols import TrainableTask
from rifflemix.lab.train.run import OnEvent, Run, ShouldStop
from rifflemix.lab.train.run_folder import (
    WEIGHTS,
    RunFolder,
    TrainResult,
    Weights,
    describe_run,
)
from rifflemix.lab.train.state import claim, load_chosen, stored_result
from rifflemix.lab.train.targets import check_targets, judged_by


def train(
    model: nn.Module,
    task: TrainableTask,
    config: TrainConfig,
    out_dir: str | Path,
    *,
    device: str | torch.device | None = None,
    on_event: OnEvent | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
    model_settings: Mapping[str, Any] | None = None,
    tests: bool = True,
    keep_weights: bool = False,
    context_parallel: int = 1,
    weights: Weights = "best",
    tests_both: bool = False,
    until: int | None = None,
) -> TrainResult:
    """Train `model` on `task`, select the weights and test them once.

    The run writes config.json, task.json, log.jsonl, checkpoint.safetensors and best.safetensors to
    `out_dir`. At the end it writes training.json and, with `weights="last"`, last.safetensors.

    A second call with the same arguments resumes from the last checkpoint. On the CPU the result
    is bitwise equal to an uninterrupted run. If the run is finished, the call returns the stored
    result. Call `seed_everything` before you create the model; the data order and the noise depend
    only on `config.seed`.

    Args:
        model: called as model(inputs, key_padding_mask=...). Afterwards it is on the training
            device and has the chosen weights, or the current weights if training was stopped.
            Under FSDP it stays sharded.
        task: data, loss and metrics; see TrainableTask.
        config: training settings; see TrainConfig.
        out_dir: folder of the run, created if it does not exist.
        device: "cpu", "cuda", "cuda:1" ...; None uses an accelerator if there is one.
        on_event: called in the main process after each update, evaluation and checkpoint.
        should_stop: called after each update and during evaluations; True writes a checkpoint
            and returns a result with `finished=False`.
        time_is_up: same as `should_stop`, but called only after updates. A running evaluation is
            completed, because a resumed run would have to repeat it.
        model_settings: settings the model was built from (JSON values); stored in config.json and
            compared on resume.
        tests: False skips the test split, and `test` of the result is None. A later call with
            True only tests the chosen weights.
        keep_weights: also write the initial weights and the weights of every evaluation to
            weights/STEP.safetensors. A resumed run may change this argument.
        context_parallel: number of processes that get the same samples, for a model that splits
            sequences over processes.
        weights: "best" chooses the weights of the best evaluation on the validation split. "last"
            chooses the weights of the last update; the validation split may then be empty.
        tests_both: test the weights of the best evaluation and of the last update. The result's
            `tests` contains both. The chosen weights stay the same.
        until: end after this update, without a test. A later call with a larger value or None
            continues. The schedule does not depend on it.

    Returns:
        The result, equal in every process.

    Raises:
        InputError: the folder belongs to another run, is in use, damaged or not writable; the
            batch size is not divisible; a split is empty; the data contains NaN; the labels cannot
            be smoothed or mixed; accelerate is not installed.
        TrainingDiverged: loss, metric or weights are not finite; the last checkpoint is kept.
        RunFailed: a loading process was killed; the last checkpoint is kept.

    Example:
        >>> import rifflemix as rm
        >>> task = rm.tasks.load_task("digits")
        >>> model = rm.create_model("encoder", vocab_size=task.vocab_size, mixer="csp")
        >>> config = rm.train.TrainConfig(max_steps=5, batch_size=16)
        >>> rm.train.train(model, task, config, "runs/csp").finished
        True
    """
    check_choice("weights", weights, WEIGHTS)
    task = judged_by(task, config.metric)
    check_splits(task, validates=weights == "best")
    check_targets(task, config)
    engine = Engine(config, device, context_parallel)
    # On a CPU, torch's fused Adafactor is not faster.
    fused = engine.device.type == "cuda" or config.optimizer != "adafactor"
    optimizer = build_optimizer(model, config, fused=fused)
    description = describe_run(
        model,
        task,
        config,
        model_settings or {},
        engine.processes,
        engine.device.type,
        context_parallel,
        weights,
    )
    folder = RunFolder(Path(out_dir))
    with ExitStack() as stack:
        stored = engine.on_main(lambda: claim(folder, description, task, stack))
        if stored is not None:
            result = stored_result(folder, stored, task.metric)
            load_chosen(engine, folder, model, weights)
            return result
        stack.callback(engine.release, model)
        stops = (should_stop, time_is_up)
        run = Run(
            engine,
            model,
            optimizer,
            task,
            config,
            folder,
            on_event,
            stops,
            keeps=keep_weights,
            weights=weights,
            until=config.max_steps if until is None else min(until, config.max_steps),
        )
        with loading_processes():
            return run.to_the_end(tests=tests, both=tests_both)
