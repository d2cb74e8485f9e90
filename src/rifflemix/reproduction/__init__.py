"""Run a recipe: train the row of a table and put the paper's number beside ours."""

from rifflemix.reproduction.results import FORMAT, load_results
from rifflemix.reproduction.run import (
    ReproducePlan,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.runs.options import ReproduceOptions

__all__ = [
    "FORMAT",
    "ReproduceOptions",
    "ReproducePlan",
    "load_results",
    "plan_reproduction",
    "run_reproduction",
]
