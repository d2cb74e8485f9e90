from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "surgery"))

from torchvision_shim import declare_operators

declare_operators()
