"""Measure the first training step on a large Parquet file: time and memory by number of rows.

    python benchmarks/first_step.py --rows 200_001 1_000_000 10_000_000

Each size has two processes: one prepares the data, and one loads it and trains one step. Without
rows, a process only imports rifflemix. The files need 60 bytes per row.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import run

from rifflemix.json_values import parse_json

TOKENS, WRITTEN_AT_ONCE = 16, 100_000
PROCESS = """
import os, resource, sys, time
{work}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
cpu = time.process_time()
print('{{"seconds": %r, "cpu_seconds": %r, "peak_memory_bytes": %r}}'
      % (time.monotonic() - float(sys.argv[2]), cpu, peak), flush=True)
os._exit(0)
"""
IMPORT = "import rifflemix as rm, rifflemix.lab.comparison, torch"
LOAD = f"""{IMPORT}
task = rm.Task.from_csv(sys.argv[1], input="x", label="y", split=(0.98, 0.01, 0.01))
"""
STEP = f"""{LOAD}
class FirstStep(BaseException):
    pass
def look(status):
    if status.step:
        raise FirstStep
try:
    rm.compare(task, ["tssa"], dim=32, num_layers=1, batch_size=32, threads=1, on_status=look)
except FirstStep:
    pass
"""


def write(path: Path, rows: int, inputs: str) -> None:
    """Write random samples of 16 tokens or characters, with ten classes."""
    import pyarrow
    from pyarrow import parquet

    random = np.random.default_rng(0)
    of_x = pyarrow.string() if inputs == "texts" else pyarrow.list_(pyarrow.int64())
    schema = pyarrow.schema({"x": of_x, "y": pyarrow.int64()})
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, WRITTEN_AT_ONCE):
            count = min(WRITTEN_AT_ONCE, rows - start)
            ids = random.integers(0, 20, (count, TOKENS))
            x: Any = list(ids)
            if inputs == "texts":
                x = [(row + 97).astype(np.uint8).tobytes().decode() for row in ids]
            columns = {"x": x, "y": random.integers(0, 10, count)}
            writer.write_table(pyarrow.table(columns, schema=schema))


def measured(work: str, path: Path, cache: str) -> dict[str, float]:
    """Run work in a new process; return its time, CPU time and peak memory."""
    command = [sys.executable, "-c", PROCESS.format(work=work), str(path), str(time.monotonic())]
    environment = {**os.environ, "RIFFLEMIX_CACHE": cache, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = parse_json(done.stdout.splitlines()[-1])
    return found


def measure(
    rows: tuple[int, ...] = (200_001, 1_000_000, 10_000_000), inputs: str = "tokens"
) -> Iterator[dict[str, Any]]:
    """Measure numbers of rows, at least 200,001, of "tokens" or "texts"."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        found.append({"rows": 0, "work": "imports", **measured(IMPORT, path, folder)})
        for count in rows:
            write(path, count, inputs)
            for name, work in (("preparation", LOAD), ("load", LOAD), ("first step", STEP)):
                found.append({"rows": count, "work": name, **measured(work, path, folder)})
                yield {"inputs": inputs, "tokens": TOKENS, "rows": found}


if __name__ == "__main__":
    run("first_step", __doc__, measure)
