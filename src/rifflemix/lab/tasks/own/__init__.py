"""Tasks from user data: arrays, data sets, tables and folders."""

from rifflemix.lab.tasks.core.own_data import MAKERS
from rifflemix.lab.tasks.own.arrays import from_arrays
from rifflemix.lab.tasks.own.folders import from_folder
from rifflemix.lab.tasks.own.hub import from_datasets, from_hf
from rifflemix.lab.tasks.own.tables import from_csv

MAKERS.update(
    from_arrays=from_arrays,
    from_csv=from_csv,
    from_datasets=from_datasets,
    from_folder=from_folder,
    from_hf=from_hf,
)

__all__ = ["from_arrays", "from_csv", "from_datasets", "from_folder", "from_hf"]
