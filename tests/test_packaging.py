"""Built packages: no Python ABI, requirements of the library, sdist and wheel."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rifflemix.ops import native

ROOT = Path(__file__).resolve().parents[1]
slow = pytest.mark.slow
LIBRARY = native._FOLDER / native._LIBRARY
needs_library = pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
needs_git = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a git checkout"
)


@needs_library
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_native_library_does_not_link_python() -> None:
    command = ["nm", "--dynamic", str(LIBRARY)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert not re.findall(r"\bPy\w+", said)
    ours = {name for name in re.findall(r" T (\w+)", said) if not name.startswith("_")}
    assert len(ours) > 20
    assert all(name.startswith("rifflemix_") for name in ours)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout, to build in the copy."""
    folder = tmp_path_factory.mktemp("sources")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def setup(sources: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *arguments],
        cwd=sources, capture_output=True, text=True, check=True, timeout=280,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
    )  # fmt: skip


@slow
@needs_git
def test_sdist_contains_the_checkout(sources: Path, tmp_path: Path) -> None:
    """Check tests, documentation, measurements and the files that `make` needs."""
    setup(sources, "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    checkout = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()} - {
        ".gitignore"
    }
    left_out = {name for name in checkout - names if "egg-info" not in name}
    assert not left_out
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


# A fake compiler that takes no time; its binaries need these versions of glibc.
COMPILER = """#!{python}
import sys
out = sys.argv[sys.argv.index("-o") + 1]
{stop}
open(out, "w").close()
"""
READELF = """#!{python}
print('''{said}''')
"""


def wheel(sources: Path, folder: Path, said: str, stop: str = "") -> Path:
    """Build the wheel with this output of the compiler and readelf."""
    tools = folder / "tools"
    tools.mkdir()
    for name, text in {
        "g++": COMPILER.format(python=sys.executable, stop=stop),
        "readelf": READELF.format(python=sys.executable, said=said),
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    setup(
        sources, "build", "--build-base", str(folder / "build"),
        "bdist_wheel", "--dist-dir", str(folder / "dist"), "--bdist-dir", str(folder / "packed"),
        PATH=f"{tools}:{os.environ['PATH']}", CC="g++", CXX="g++",
    )  # fmt: skip
    (built,) = (folder / "dist").iterdir()
    return built


GLIBC_ONLY = """
Version needs section '.gnu.version_r' contains 2 entries:
 0000: Version: 1  File: libm.so.6  Cnt: 1
   Name: GLIBC_2.27  Flags: none  Version: 14
 0020: Version: 1  File: libc.so.6  Cnt: 2
   Name: GLIBC_2.4  Flags: none  Version: 12
   Name: GLIBC_2.{}  Flags: none  Version: 10
"""
GLIBC_AND_LIBSTDCXX = GLIBC_ONLY + " 0x0080: Version: 1  File: libstdc++.so.6  Cnt: 1\n"


@pytest.mark.slow
@needs_git
@pytest.mark.skipif(sys.platform != "linux", reason="tags of Linux")
@pytest.mark.parametrize(
    ("said", "stop", "tag"),
    [
        (GLIBC_ONLY.format(34), "", "py3-none-manylinux_2_34_"),
        pytest.param(GLIBC_ONLY.format(5), "", "py3-none-manylinux_2_27_", marks=slow),
        pytest.param(GLIBC_AND_LIBSTDCXX.format(34), "", "py3-none-linux_", marks=slow),
        pytest.param("nothing", "", "py3-none-linux_", marks=slow),
        pytest.param("nothing", "sys.exit('no such thing')", "py3-none-any", marks=slow),
    ],
    ids=["glibc", "an older glibc", "more than glibc", "unknown", "no library"],
)
def test_tag_of_a_wheel_has_the_glibc_of_its_library(
    said: str, stop: str, tag: str, sources: Path, tmp_path: Path
) -> None:
    built = wheel(sources, tmp_path, said, stop)
    assert f"-{tag}" in built.name
    with zipfile.ZipFile(built) as packed:
        names = packed.namelist()
        (meta,) = [name for name in names if name.endswith("/WHEEL")]
        assert f"Tag: {tag}" in packed.read(meta).decode()
    folder = "rifflemix/ops/native/"
    assert (f"{folder}_kernels.so" in names) == (not stop)
    assert (f"{folder}_kernels_build.txt" in names) == bool(stop)
    assert not [name for name in names if re.search(r"cpython|tests/|\.cpp$|\.h$", name)]
    assert {"rifflemix/py.typed", "rifflemix/lab/report/templates/comparison.html"} <= set(names)


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="tags of Linux")
@pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("objdump")), reason="needs a compiler"
)
def test_the_glibc_of_a_real_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that readelf and objdump agree on a library of `make wheel`."""
    flags = ["-O1", "-fPIC", "-shared", "-pthread", "-static-libstdc++", "-static-libgcc"]
    sources = [str(native._FOLDER / name) for name in ("threads.cpp", "memory.cpp")]
    library = tmp_path / "threads.so"
    subprocess.run(["g++", "-std=c++17", *flags, *sources, "-o", library], check=True, timeout=120)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    found = runpy.run_path(str(ROOT / "setup.py"))["needed_glibc"](library)
    command = ["objdump", "--dynamic-syms", str(library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", said)
    assert found == max((int(major), int(minor)) for major, minor in versions)
    here = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1]
    assert found <= tuple(map(int, here.split(".")))  # it was built here, so it runs here
