"""The plan as a table: what each step is expected to take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages import Stage, Step

EXPECTED = Path(__file__).parent / "expected.json"
# What large GPUs of today sustain on such work, in bfloat16: well below their data sheets. The
# last is what an operator of a small model took on an H100 that trained six rows at once.
_FLOPS, _BYTES, _LAUNCH = 1.5e14, 2e12, 6e-5


def write_expected(steps: Sequence[Step]) -> None:
    """Count every row of the plan and write what it should take."""
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction.cost import Speed, recipe_costs

    entries = {}
    names = dict.fromkeys(step.recipe for step in steps if step.recipe)
    for cost in recipe_costs([*map(get_recipe, names)], Speed(_FLOPS, _BYTES, 0.0)):
        seconds = max(cost["seconds_per_step"], cost["operators"] * _LAUNCH)
        name = cost["name"]
        entries[name] = {
            "steps": cost["steps"],
            "peak_bytes": cost["peak_bytes"],
            "launches_a_step": cost["operators"],
            "seconds_a_step": seconds,
            "minutes": cost["steps"] * seconds / 60,
        }
        print(name, entries[name], flush=True)
    assumed = {"flops": _FLOPS, "bytes": _BYTES, "launch_seconds": _LAUNCH}
    EXPECTED.write_text(json.dumps({"assumed": assumed, "rows": entries}, indent=1) + "\n")


def expected() -> dict[str, Any]:
    """Recipe -> what its row should take, as `write_expected` wrote it."""
    rows: dict[str, Any] = json.loads(EXPECTED.read_text())["rows"]
    return rows


def show_plan(stages: Sequence[Stage], rows: dict[str, Any]) -> None:
    """Print every step with its memory, launches and time."""
    line = "{:<50} {:>10} {:>9} {:>10}  {}".format
    for stage in stages:
        print(f"{stage.name}: {stage.title}")
        print(line("", "memory", "launches", "minutes", "data"))
        for step in stage.steps:
            row = rows.get(step.recipe)
            memory, launches, minutes = "-", "-", f"<= {step.minutes:g}"
            if row:
                memory = f"{row['peak_bytes'] / 2**30:.1f} GiB"
                launches, minutes = f"{row['launches_a_step']:,}", f"{row['minutes']:.1f}"
            print(line(f"  {step.name}", memory, launches, minutes, ", ".join(step.packs)))
    print("Launches are those of a training step; rows go on over as many calls as they take.")
    print("Memory of the other steps is in their results.")
