"""Folder of one run: its files, its log, and the check whether a run may be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import (
    CONFIG_FILE,
    check_regular,
    claimed_folder,
    damaged_run,
    flush,
    read_json,
    read_json_lines,
    reported,
    user_path,
)
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.train.config import TrainConfig, free_settings
from rifflemix.lab.train.protocols import TrainableTask

Weights = Literal["best", "last"]
"""Weights that a run selects: from the best evaluation, or from the last update."""

WEIGHTS: tuple[Weights, ...] = ("best", "last")

_HASH = "model.hash"
_OLD_SIGNATURE = "model.signature"


class RunFolder:
    """Files of a run in `path`.

    - config.json, log.jsonl, training.json
    - checkpoint.safetensors
    - best.safetensors: weights of the best evaluation
    - last.safetensors: weights of the last update, if the run selects them
    - weights/STEP.safetensors: weights of every evaluation, if the run keeps them
    """

    def __init__(self, path: Path) -> None:
        self.path = path = user_path("out_dir", path)
        self.config = path / CONFIG_FILE
        self.log = path / "log.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.result = path / "training.json"
        self.weights = path / "weights"

    def chosen(self, weights: Weights) -> Path:
        """Return the path of the best or last weights."""
        return self.best if weights == "best" else self.last

    def weights_at(self, step: int) -> Path:
        """Return the path of the weights of an evaluation."""
        return self.weights / f"{step}.safetensors"

    def kept_weights(self) -> dict[int, Path]:
        """Return step -> file of all kept weights, sorted by step."""
        found = (path.stem for path in self.weights.glob("*.safetensors"))
        return {
            step: self.weights_at(step) for step in sorted(int(s) for s in found if _is_step(s))
        }

    def opened(self, identity: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Lock the folder for a new or resumed run described by `identity`.

        Raises:
            InputError: the folder cannot be written, is in use, or contains something else.
        """
        # Runs of rifflemix up to 0.1.0.dev store a hash that depends on class names. Their
        # checkpoints are compared by tensors when they are read.
        free = [*free_settings("config"), _OLD_SIGNATURE]
        if self._has_old_signature():
            free.append(_HASH)
        return claimed_folder(self.path, identity, name="out_dir", free=free)

    def _has_old_signature(self) -> bool:
        if not self.config.is_file():
            return False
        stored = read_json(self.config)
        model = stored.get("model") if isinstance(stored, dict) else None
        return isinstance(model, dict) and "signature" in model

    def cut_log(self, size: int, sha256: str = "") -> None:
        """Truncate the log to `size` bytes and compare its checksum with `sha256`.

        Raises:
            InputError: the log is shorter than `size`, is not a log, or has another checksum.
        """
        with reported("write", self.log):
            if self.log.exists():
                check_regular(self.log)
            with open(self.log, "ab") as file:
                if file.tell() < size:
                    raise InputError(
                        f"{self.log} is damaged: expected at least {size} bytes, got "
                        f"{file.tell()}; remove the folder to start over"
                    )
                file.truncate(size)
        read_log(self.log)
        with reported("read", self.log):
            digest = self._log_digest()
        if sha256 not in ("", digest):
            raise damaged_run(self.log, "its checksum does not match")

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of JSON to the log."""
        line = json.dumps(entry, allow_nan=False) + "\n"
        with reported("write", self.log), open(self.log, "a", encoding="utf-8") as file:
            file.write(line)

    def settle_log(self) -> tuple[int, str]:
        """Flush the log; return its size in bytes and its checksum."""
        with reported("write", self.log):
            flush(self.log)
            return self.log.stat().st_size, self._log_digest()

    def _log_digest(self) -> str:
        return hashlib.sha256(self.log.read_bytes()).hexdigest()


def read_log(path: Path) -> list[dict[str, float]]:
    """Read the steps and training losses of a log.

    Raises:
        InputError: the log cannot be read, or a line has another format than `append_log` writes.
    """
    curve = []
    for number, entry in enumerate(read_json_lines(path), start=1):
        try:
            check_json(entry, dict[str, Any], "the line")
            if entry.get("split") == "train":
                check_json(entry, _LoggedLoss, "the line")
                curve.append({"step": entry["step"], "loss": entry["loss"]})
        except ValueError as error:
            raise damaged_run(path, f"line {number}: {error}") from error
    return curve


class _LoggedLoss(TypedDict):
    step: int
    loss: float


def describe_run(
    model: nn.Module,
    task: TrainableTask,
    config: TrainConfig,
    settings: Mapping[str, Any],
    processes: int,
    device_type: str,
    context_parallel: int = 1,
    weights: Weights = "best",
) -> dict[str, Any]:
    """Describe a run: two runs with equal descriptions compute the same result.

    `settings` are the settings that the caller built the model from.
    """
    description = {
        "config": config.to_dict(),
        "task": {
            "name": task.name,
            "options": dict(task.options),
            "fingerprint": task.fingerprint(),
        },
        "model": {"settings": dict(settings), "hash": _model_hash(model)},
        "processes": processes,
        "device": device_type,
        **({"context_parallel": context_parallel} if context_parallel > 1 else {}),
        **({"weights": weights} if weights != "best" else {}),
    }
    try:
        plain: dict[str, Any] = parse_json(json.dumps(description, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_argument("model_settings and task options", "JSON values", error) from error
    return plain


def _model_hash(model: nn.Module) -> str:
    """Hash the model's tensors and the settings of its torch.nn modules.

    The hash uses names, shapes and dtypes of tensors. Class names and modules without tensors are
    ignored, because they may change between versions.
    """
    tensors = [f"{k} {tuple(t.shape)} {t.dtype}" for k, t in model.state_dict().items()]
    modules = [m for m in model.modules() if type(m).__module__.startswith("torch.nn.")]
    settings = sorted(f"{type(m).__name__}({m.extra_repr()})" for m in modules)
    return hashlib.sha256("\n".join([*tensors, *settings]).encode()).hexdigest()[:16]


def _is_step(text: str) -> bool:
    """Check for ASCII digits only: `isdecimal` also accepts digits of other scripts."""
    return text.isascii() and text.isdecimal()
