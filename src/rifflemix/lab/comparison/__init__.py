"""The main job: every mixer on the same backbone, data, budget and seeds."""

from rifflemix.lab.comparison.api import Comparison, check_any_finished, compare
from rifflemix.lab.comparison.budgets import default_budget, train_config
from rifflemix.lab.comparison.choices import resolve
from rifflemix.lab.comparison.config import MOST_SEEDS, CompareConfig, default_mixers, default_model
from rifflemix.lab.comparison.models import build_model, check_model, training_memory
from rifflemix.lab.comparison.plan import ComparePlan, plan_comparison
from rifflemix.lab.comparison.results import title_of
from rifflemix.lab.comparison.run import run_comparison, train_mixer
from rifflemix.lab.comparison.single import plan_single, train_single
from rifflemix.lab.comparison.suite import (
    SuiteComparison,
    SuitePlan,
    compare_suite,
    plan_suite,
    run_suite,
)
from rifflemix.lab.comparison.suites import SUITES, get_suite
from rifflemix.lab.tasks import Budget

__all__ = [
    "MOST_SEEDS",
    "SUITES",
    "Budget",
    "CompareConfig",
    "ComparePlan",
    "Comparison",
    "SuiteComparison",
    "SuitePlan",
    "build_model",
    "check_any_finished",
    "check_model",
    "compare",
    "compare_suite",
    "default_budget",
    "default_mixers",
    "default_model",
    "get_suite",
    "plan_comparison",
    "plan_single",
    "plan_suite",
    "resolve",
    "run_comparison",
    "run_suite",
    "title_of",
    "train_config",
    "train_mixer",
    "train_single",
    "training_memory",
]
