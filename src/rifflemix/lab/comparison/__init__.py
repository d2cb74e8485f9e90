"""Compare mixers with the same backbone, data, budget and seeds."""

from rifflemix.lab.comparison.api import Comparison, compare
from rifflemix.lab.comparison.choices import resolve
from rifflemix.lab.comparison.config import MOST_SEEDS, CompareConfig, train_config
from rifflemix.lab.comparison.defaults import default_budget, default_mixers, default_model
from rifflemix.lab.comparison.models import build_model, check_model, training_memory
from rifflemix.lab.comparison.plan import ComparePlan, plan_comparison
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.results import title_of
from rifflemix.lab.comparison.run import collect_comparison, run_comparison, train_mixer
from rifflemix.lab.comparison.sharing import measure_apart
from rifflemix.lab.comparison.single import plan_single, train_single
from rifflemix.lab.comparison.suites.catalog import SUITES, get_suite
from rifflemix.lab.comparison.suites.run import (
    SuiteComparison,
    SuitePlan,
    compare_suite,
    open_suite,
    plan_suite,
    run_suite,
)
from rifflemix.lab.tasks import Budget

__all__ = [
    "MOST_SEEDS",
    "SUITES",
    "Budget",
    "CompareConfig",
    "ComparePlan",
    "Comparison",
    "Results",
    "SuiteComparison",
    "SuitePlan",
    "build_model",
    "check_model",
    "collect_comparison",
    "compare",
    "compare_suite",
    "default_budget",
    "default_mixers",
    "default_model",
    "get_suite",
    "measure_apart",
    "open_suite",
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
