"""Run the tests of Triton kernels in Triton's interpreter if there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PERMUTATION = "permutation/test_permutation_triton.py"
STATISTICS = "statistics/test_statistics_triton.py"

STRIDES = "test_registered_operators.py::test_strides_do_not_change_results"
EMPTY = "test_registered_operators.py::test_empty_batch"
PACKED = "test_packed_triton.py"
BALANCING = "sinkhorn/test_balancing_triton.py"
ATTENTION = "sinkhorn/test_attention_triton.py"
RECURRENCE = "recurrence/test_recurrence_triton.py"

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs triton: pip install -e '.[gpu]'"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="those tests run in this process already"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize(
    "files",
    [(PERMUTATION,), (STATISTICS,), (STRIDES, EMPTY, PACKED, BALANCING, ATTENTION), (RECURRENCE,)],
    ids=["permutation", "statistics", "operators", "recurrence"],
)
def test_triton_tests_pass_in_the_interpreter(files: tuple[str, ...]) -> None:
    paths = [str(FOLDER / file) for file in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", *paths],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
