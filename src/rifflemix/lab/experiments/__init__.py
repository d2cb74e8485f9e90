"""The engine of all trainings: a plan of runs, one folder and one record per run, workers."""

from rifflemix.lab.experiments.overview import Observer, Overview, StatusFile, WorkerStatus
from rifflemix.lab.experiments.plan import (
    ALL_RUNS,
    ONLY_RUN,
    Experiment,
    Neighbors,
    OneRun,
    PlannedRun,
    Records,
    RunRecord,
    Shard,
    Utilisation,
    newest_environment,
    write_summary,
)
from rifflemix.lab.experiments.share import Cluster, read_cluster, share_runs
from rifflemix.lab.experiments.store import RunStore, files_of, held_folder, only_run
from rifflemix.lab.experiments.work import ALONE, Caller, Outcome, Role, Trained, Trainer, carry_out
from rifflemix.lab.experiments.workers import Launch, Payload, Workers, read_launch, write_launch

__all__ = [
    "ALL_RUNS",
    "ALONE",
    "ONLY_RUN",
    "Caller",
    "Cluster",
    "Experiment",
    "Launch",
    "Neighbors",
    "Observer",
    "OneRun",
    "Outcome",
    "Overview",
    "Payload",
    "PlannedRun",
    "Records",
    "Role",
    "RunRecord",
    "RunStore",
    "Shard",
    "StatusFile",
    "Trained",
    "Trainer",
    "Utilisation",
    "WorkerStatus",
    "Workers",
    "carry_out",
    "files_of",
    "held_folder",
    "newest_environment",
    "only_run",
    "read_cluster",
    "read_launch",
    "share_runs",
    "write_launch",
    "write_summary",
]
