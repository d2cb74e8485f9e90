"""Runs the tests of Triton kernels where there is no GPU, in Triton's interpreter."""

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

STRIDES = "test_registered_operators.py::test_strides_change_nothing"
NONE = "test_registered_operators.py::test_a_batch_of_none"

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs triton: pip install -e '.[gpu]'"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="those tests run in this process already"
    ),
]
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Every kernel once; the rest of what is not marked slow would take half a minute too long.
FEW = (
    "with_padding or circular_shift or columns_of_zeros or gradient_of_a_gradient or no_samples"
    " or refused or never_interprets or a_batch_of_none"
)


@pytest.mark.parametrize(
    ("files", "which"),
    [
        pytest.param(
            (PERMUTATION, STATISTICS, NONE),
            ("-m", "not slow and not gpu", "-k", FEW),
            id="few",
        ),
        pytest.param((PERMUTATION,), ("-m", "not gpu"), id="permutation", marks=SLOW),
        pytest.param((STATISTICS,), ("-m", "not gpu"), id="statistics", marks=SLOW),
        pytest.param((STRIDES,), ("-m", "not gpu"), id="strides", marks=SLOW),
    ],
)
def test_in_the_interpreter(files: tuple[str, ...], which: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *which,
        *(str(FOLDER / file) for file in files),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, env=environment, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
