"""The engine of all trainings: a plan of runs, one folder and one record per run, workers."""

from rifflemix.lab.experiments.plan import ONLY_RUN, Experiment, OneRun, PlannedRun, Records
from rifflemix.lab.experiments.records import (
    RunRecord,
    Utilisation,
    newest_environment,
    write_summary,
)
from rifflemix.lab.experiments.store import RunStore, files_of, held_folder, only_run
from rifflemix.lab.experiments.work import Caller, Outcome, Trained, Trainer, carry_out

__all__ = [
    "ONLY_RUN",
    "Caller",
    "Experiment",
    "OneRun",
    "Outcome",
    "PlannedRun",
    "Records",
    "RunRecord",
    "RunStore",
    "Trained",
    "Trainer",
    "Utilisation",
    "carry_out",
    "files_of",
    "held_folder",
    "newest_environment",
    "only_run",
    "write_summary",
]
