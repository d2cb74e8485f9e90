"""The main job: every mixer on the same backbone, data, budget and seeds."""

from rifflemix.comparison.budgets import default_budget, train_config
from rifflemix.comparison.config import MOST_SEEDS, CompareConfig, default_mixers, default_model
from rifflemix.comparison.models import build_model, check_model, training_memory
from rifflemix.comparison.plan import ComparePlan, plan_comparison
from rifflemix.comparison.results import single_run
from rifflemix.comparison.run import run_comparison, train_mixer
from rifflemix.tasks import Budget

__all__ = [
    "MOST_SEEDS",
    "Budget",
    "CompareConfig",
    "ComparePlan",
    "build_model",
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
]
