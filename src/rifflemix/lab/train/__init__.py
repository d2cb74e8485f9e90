"""Training loop, optimizers, schedules, checkpoints and seeds."""

from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.loop import train
from rifflemix.lab.train.run_folder import TrainEvent, TrainingDiverged, TrainResult
from rifflemix.lab.train.seeds import seed_everything

__all__ = [
    "TrainConfig",
    "TrainEvent",
    "TrainResult",
    "TrainingDiverged",
    "seed_everything",
    "train",
]
