"""Use trained models: predict, export and save them without the training data."""

from rifflemix.lab.trained.load import load_run
from rifflemix.lab.trained.run import TrainedRun

__all__ = ["TrainedRun", "load_run"]
