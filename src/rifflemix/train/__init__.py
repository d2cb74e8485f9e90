"""Training loop, optimisers, schedules, checkpoints, seeds."""

from rifflemix.train.config import TrainConfig
from rifflemix.train.loop import train
from rifflemix.train.results import TrainEvent, TrainingDiverged, TrainResult
from rifflemix.train.seeds import seed_everything

__all__ = [
    "TrainConfig",
    "TrainEvent",
    "TrainResult",
    "TrainingDiverged",
    "seed_everything",
    "train",
]
