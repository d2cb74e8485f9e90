"""Run a recipe: train the row of a table and put the paper's number beside ours."""

from rifflemix.lab.reproduction.plan import ReproducePlan, plan_reproduction
from rifflemix.lab.reproduction.results import FORMAT, load_results
from rifflemix.lab.reproduction.run import run_reproduction
from rifflemix.lab.runs.options import ReproduceOptions

__all__ = [
    "FORMAT",
    "ReproduceOptions",
    "ReproducePlan",
    "load_results",
    "plan_reproduction",
    "run_reproduction",
]
