"""Recipes of the CSP paper's Table 4, second group: MEGA, MEGA-chunk and MEGA with CSP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rifflemix.lab.recipes import lra
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig
from rifflemix.models import model_settings

PAPER = "Yuan and Xu, Channel-wise Sample Permutation"

# Models and their names in the table.
ROWS: dict[str, str] = {
    "mega": "MEGA",
    "mega_chunk": "MEGA-chunk",
    "mega_csp": "MEGA using CSP",
}
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


@dataclass(frozen=True)
class _Run:
    """Training settings; `batch` counts all processes and all accumulation steps."""

    batch: int
    accumulation: int
    updates: int
    warmup: int
    rate: float
    decay: float


# MEGA's released commands. Path-X used 8 processes, 8 accumulation steps and 2 samples in each.
_OWN: dict[str, _Run] = {
    "listops": _Run(64, 1, 90_000, 3_000, 1e-3, 0.01),
    "text": _Run(50, 2, 25_000, 10_000, 4e-3, 0.01),
    "retrieval": _Run(64, 8, 91_960, 10_000, 3e-3, 0.04),
    "image": _Run(50, 1, 180_000, 9_000, 1e-2, 0.02),
    "pathfinder": _Run(128, 1, 250_000, 50_000, 1e-2, 0.01),
    "pathx": _Run(128, 8, 125_000, 25_000, 1e-2, 0.01),
}
# Settings of CSP's Table 7 or script; the other tasks are equal to MEGA's.
_CSP: dict[str, _Run] = {
    **_OWN,
    "retrieval": _Run(64, 8, 91_960, 10_000, 6e-3, 0.04),
    "pathfinder": _Run(128, 1, 250_000, 50_000, 3e-2, 0.01),
    "pathx": _Run(480, 8, 125_000, 25_000, 1e-2, 0.01),
}
# Task of the model without a sort; it keeps the reported shift of its preset.
_SHIFT_ONLY = "image"


def _as_released(model: str) -> dict[str, Any]:
    """Return the MEGA block's options with the released sort and shifts."""
    options = model_settings(model)["mixer_options"]
    csp = options["csp_options"]
    shift = {"linear": "code_linear", "power": "code_exp"}.get(csp["shift"], csp["shift"])
    return {**options, "csp_options": {**csp, "order": "ascending", "shift": shift}}


def table4(task: str, row: str) -> Recipe:
    """Build an entry of Table 4, second group, with MEGA's layers."""
    title, task_name, options = lra.TASKS[task]
    model, is_own = f"{row}_lra_{task}", row == "mega_csp"
    is_released = is_own and task != _SHIFT_ONLY
    return Recipe(
        name=f"csp/table4-{task}-{row}",
        paper=PAPER,
        table="Table 4",
        row=ROWS[row],
        column=title,
        task=task_name,
        task_options={**options, **lra.MEGA_TASK_OPTIONS.get(task, {})},
        model=model,
        model_settings={"mixer_options": _as_released(model)} if is_released else {},
        train=_config(task, _CSP[task] if is_own else _OWN[task]),
    )


def training(task: str) -> TrainConfig:
    """Return the training configuration of MEGA's released command."""
    return _config(task, _OWN[task])


def _config(task: str, run: _Run) -> TrainConfig:
    return TrainConfig(
        max_steps=run.updates,
        batch_size=run.batch,
        accumulation=run.accumulation,
        lr=run.rate,
        weight_decay=run.decay,
        decay_all=True,  # fairseq's trainer has one group of all parameters
        betas=(0.9, 0.98),
        schedule="linear",
        warmup_steps=run.warmup,
        warmup_init=1e-7,
        warmup_power=2.0 if task == "pathx" else 1.0,
        clip_norm=1.0,
        eval_every=1_000,
    )
