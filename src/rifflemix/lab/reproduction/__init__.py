"""Run a recipe: train the row of a table and put the paper's number beside ours."""

from rifflemix.lab.reproduction.plan import ReproducePlan, plan_reproduction
from rifflemix.lab.reproduction.records import FORMAT, Reproduction, load_results
from rifflemix.lab.reproduction.run import (
    collect_reproduction,
    experiment_of,
    open_reproductions,
    run_reproduction,
)
from rifflemix.lab.runs.options import ReproduceOptions

__all__ = [
    "FORMAT",
    "ReproduceOptions",
    "ReproducePlan",
    "Reproduction",
    "collect_reproduction",
    "experiment_of",
    "load_results",
    "open_reproductions",
    "plan_reproduction",
    "run_reproduction",
]
