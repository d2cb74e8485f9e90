"""Tasks from user data: arrays, data sets, tables and folders."""

from rifflemix.lab.tasks.core.from_user_data import MAKERS
from rifflemix.lab.tasks.user_data.arrays import from_arrays
from rifflemix.lab.tasks.user_data.folders import from_folder
from rifflemix.lab.tasks.user_data.hub import from_datasets, from_hf
from rifflemix.lab.tasks.user_data.tables import from_csv

MAKERS.update(
    from_arrays=from_arrays,
    from_csv=from_csv,
    from_datasets=from_datasets,
    from_folder=from_folder,
    from_hf=from_hf,
)

__all__ = ["from_arrays", "from_csv", "from_datasets", "from_folder", "from_hf"]
