"""The main job: every mixer on the same backbone, data, budget and seeds."""

from rifflemix.bench.compare.budgets import Budget, default_budget, train_config
from rifflemix.bench.compare.config import (
    MOST_SEEDS,
    MOST_THREADS,
    CompareConfig,
    default_mixers,
    default_model,
)
from rifflemix.bench.compare.models import build_model, check_model, training_memory
from rifflemix.bench.compare.plan import ComparePlan, check_folder, plan_comparison
from rifflemix.bench.compare.results import single_run
from rifflemix.bench.compare.run import RunStatus, run_comparison, train_mixer, using_threads

__all__ = [
    "MOST_SEEDS",
    "MOST_THREADS",
    "Budget",
    "CompareConfig",
    "ComparePlan",
    "RunStatus",
    "build_model",
    "check_folder",
    "check_model",
    "default_budget",
    "default_mixers",
    "default_model",
    "plan_comparison",
    "run_comparison",
    "single_run",
    "train_config",
    "train_mixer",
    "training_memory",
    "using_threads",
]
