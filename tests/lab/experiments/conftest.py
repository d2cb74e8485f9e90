from __future__ import annotations

import sys
from pathlib import Path

# toy_training.py is shared by the tests of training and of the engine.
sys.path.append(str(Path(__file__).parents[1] / "train"))
