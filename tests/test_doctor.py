"""rifflemix doctor: every finding in each state, the exit code, and the single warning."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import rifflemix.cli
from rifflemix.errors import InputError
from rifflemix.lab.runs import doctor
from rifflemix.lab.runs.doctor import ABSENT, BROKEN, OK, Finding, examine, failed_imports
from rifflemix.ops import group_sort, native, token_statistics
from rifflemix.ops.permutation import cpu_common as permutation
from rifflemix.ops.statistics import cpu_common as statistics

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def imports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assume that packages can be imported, since real imports take seconds."""
    if "real_imports" not in request.fixturenames:
        monkeypatch.setattr(doctor, "failed_imports", lambda targets: {})


@pytest.fixture
def real_imports() -> None:
    """Import packages for real."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a one-module package, optionally with entry points, for all processes."""
    folder = tmp_path / "installed"

    def install(name: str, code: str, points: str = "") -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(code)
        about = folder / f"{name}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text(points)

    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return install


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of an installation without compiled kernels."""
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(doctor, "instruction_level", lambda: 0)
    monkeypatch.setattr(permutation, "_KERNELS", None)
    monkeypatch.setattr(statistics, "_HAS_VECTORS", False)
    native._warn_of_missing_kernels.cache_clear()
    yield tmp_path
    native._warn_of_missing_kernels.cache_clear()


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rifflemix", "doctor", *options])
    return rifflemix.cli.main()


def finding(name: str) -> Finding:
    return next(found for found in examine() if found.name == name)


def test_findings_have_names_states_and_details() -> None:
    found = examine()
    assert len({finding.name for finding in found}) == len(found)
    assert {finding.state for finding in found} <= {OK, ABSENT, BROKEN}
    assert all(finding.detail and "\n" not in finding.detail for finding in found)


@pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
def test_a_sound_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json") == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["compiled kernels"]["state"] == OK
    assert found["compiled kernels"]["detail"].startswith(str(native._FOLDER))
    assert not any(entry["state"] == BROKEN for entry in found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("real_imports")
def test_extras_are_broken_exactly_if_python_cannot_import_them() -> None:
    """Check a torchvision for another torch: timm and transformers are broken."""
    found = {one.name: one.state for one in examine()}
    for extra, module in {"compare": "accelerate", "data": "datasets", "vision": "timm"}.items():
        command = [sys.executable, "-c", f"import {module}"]
        done = subprocess.run(command, capture_output=True, timeout=240)
        assert found[f"extra {extra}"] == (BROKEN if done.returncode else OK)


def test_findings_are_printed_as_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    assert "compiled kernels" in capsys.readouterr().out


def test_kernels_that_were_never_built(
    no_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 1
    captured = capsys.readouterr()
    assert "C++ compiler" in " ".join(captured.out.split())
    assert not captured.err
    for name in ("sorts on the CPU", "token statistics on the CPU"):
        assert finding(name).state == ABSENT


def test_kernels_whose_compilation_failed(
    no_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (no_library / native._BUILD_LOG).write_text("sort.cpp:1: error: [/no] such thing\n")
    assert run(monkeypatch) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "sort.cpp:1: error: [/no] such thing" in said
    assert "--force-reinstall --no-deps --no-cache-dir" in said  # otherwise pip uses its cache
    assert run(monkeypatch, "--json") == 1
    outputs = [entry["output"] for entry in json.loads(capsys.readouterr().out)]
    assert "sort.cpp:1: error: [/no] such thing" in outputs


def test_kernels_that_do_not_load(no_library: Path) -> None:
    name = Path(native.find_library()[1].split(" ")[0]).name
    before = finding("compiled kernels")
    (no_library / name).write_bytes(b"not a library")
    found = finding("compiled kernels")
    assert found.state == BROKEN
    assert name in found.detail
    assert found.detail != before.detail


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, state in (("2.7.1+cpu", BROKEN), ("2.8.0", OK), ("3.0.0a1", OK)):
        monkeypatch.setattr(torch, "__version__", version)
        assert finding("versions").state == state
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = ".".join(map(str, doctor.LOWEST_TORCH))
    assert f"torch>={lowest}" in requirements


def test_extras_equal_the_package_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = {
        extra: tuple(re.split(r"[^\w-]", r)[0] for r in requirements if "rifflemix[" not in r)
        for extra, requirements in extras.items()
        if extra not in ("docs", "notebooks", "peers", "test", "train")
    }
    assert extras["train"] == ["rifflemix[compare]"]
    assert ours == doctor.EXTRAS


def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "compare", ("accelerate", "no-such-thing"))
    found = finding("extra compare")
    assert found.state == ABSENT
    assert re.search(r'no-such-thing\b.*pip install "rifflemix\[compare\]"', found.detail)


BROKEN_CODE = {
    "import no_such_dependency": "ModuleNotFoundError: No module named 'no_such_dependency'",
    "raise RuntimeError('first\\nsecond')": "RuntimeError: first second",
    "raise SystemExit(3)": "SystemExit: 3",
    "import os; os._exit(3)": "the import ended Python with exit code 3",
    "import os; os.kill(os.getpid(), 11)": "the import ended Python with SIGSEGV",
    "import time; time.sleep(600)": "the import takes more than 2 s",
    "import os, time; os.fork() or time.sleep(600)": "",
    "print('noise'); import sys; sys.stderr.write('more')": "",
}


def test_imports_that_fail_crash_or_hang_have_a_reason_in_one_line(
    package: Callable[..., None],
) -> None:
    expected = {}
    for index, (code, reason) in enumerate(BROKEN_CODE.items()):
        package(f"broken_{index}", code)
        expected[f"broken_{index}"] = reason
    start = time.monotonic()
    found = failed_imports([*expected, "broken_7:absent", "no_such_module"], seconds=2)
    assert time.monotonic() - start < 60
    assert found == {name: reason for name, reason in expected.items() if reason} | {
        "broken_7:absent": "AttributeError: module 'broken_7' has no attribute 'absent'",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }


@pytest.mark.usefixtures("real_imports")
def test_an_extra_that_cannot_be_imported_is_broken(
    package: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    package("sick", "import ctypes; ctypes.CDLL('libsick.so')")
    monkeypatch.setattr(doctor, "EXTRAS", {"vision": ("sick", "no-such-thing"), "cli": ("typer",)})
    found = finding("extra vision")
    assert found.state == BROKEN
    assert re.fullmatch(
        r"cannot import sick 1\.2: OSError: libsick\.so: .*; "
        r'no no-such-thing: pip install "rifflemix\[vision\]"',
        found.detail,
    )
    assert finding("extra cli").state == OK
    assert run(monkeypatch) == 1


@pytest.mark.usefixtures("real_imports")
def test_plugins_are_examined_without_an_import_here(
    package: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {})
    package("sound", "Mixer = 1", "[rifflemix.mixers]\nmine = sound:Mixer\n")
    package("sick", "import os; os._exit(1)", "[rifflemix.tasks]\nill = sick:Task\n")
    found = {one.name: one for one in examine()}
    assert found["mixer mine"] == Finding("mixer mine", OK, "sound:Mixer of package sound")
    assert found["task ill"].state == BROKEN
    assert found["task ill"].detail.endswith("the import ended Python with exit code 1")
    assert "sound" not in sys.modules


def test_cache_folder_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finding("cache folder").detail
    assert before.startswith(str(tmp_path / "cache"))
    assert before != str(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    assert finding("cache folder") == Finding("cache folder", OK, str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "file" / "cache"))
    assert finding("cache folder").state == BROKEN
    monkeypatch.setenv("RIFFLEMIX_CACHE", "~nosuchuser/cache")
    assert finding("cache folder").state == BROKEN


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for threads, state in ((1, OK), (2, OK), (3, BROKEN)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert finding("CPU threads").state == state


def test_data_of_a_folder(tmp_path: Path) -> None:
    assert f"with --data-dir {tmp_path}" in examine(tmp_path)[-1].detail
    with pytest.raises(InputError):
        examine(tmp_path / "not there")


def test_a_slow_call_warns_once(no_library: Path) -> None:
    small, large = torch.randn(1, 4, 4), torch.randn(1, 4096, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group_sort(small, 2)
        assert not caught
        group_sort(large, 2)
        group_sort(large, 2)
        token_statistics(large.unsqueeze(1), torch.ones(1))
    (warning,) = caught
    assert warning.category is native.MissingKernels
    assert "`rifflemix doctor`" in str(warning.message)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_failed_build_stores_the_message_of_the_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "rifflemix" / "ops" / "native"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "broken.cpp").write_text("#error as planned\n")
    (tmp_path / "setup.py").write_text((ROOT / "setup.py").read_text())
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "rifflemix"\nversion = "0"\n'
        '[tool.setuptools.packages.find]\nwhere = ["src"]\n'
    )
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "as planned" in done.stderr
    assert "as planned" in (folder / native._BUILD_LOG).read_text()
    (folder / "broken.cpp").write_text("int sound;\n")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=240,
    )
    assert not (folder / native._BUILD_LOG).exists()
    assert list(folder.glob("_kernels*"))
