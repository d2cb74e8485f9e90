"""The optional C++ extension; everything else is in pyproject.toml.

It needs neither Python's headers nor torch to build: a plain shared library that
rifflemix.ops.native loads with ctypes, so that one wheel of a platform serves every Python. Without
a compiler the installation succeeds and the eager operators serve; what the compiler said then lies
beside the sources, where `rifflemix doctor` shows it.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/rifflemix/ops/native")
LIBRARY = "_kernels.so"  # rifflemix.ops.native loads it
LOG = "_kernels_build.txt"  # and reads this
# Of what -O3 adds to -O2 these serve the kernels; the rest is a quarter of the compiler's time.
# -Wno-psabi: functions that pass vectors are inlined, so no call convention can change.
FLAGS = [
    "-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops",
    "-funswitch-loops", "-g0", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi", "-pthread",
]  # fmt: skip


class BuildKernels(build_ext):
    """Builds the extension; where that fails it keeps the compiler's words and goes on.

    setuptools compiles one file after another; here as many at once as there are processors, the
    longest first.
    """

    def run(self):
        self.logs = [Path(self.get_ext_fullpath(e.name)).parent / LOG for e in self.extensions]
        for log in self.logs:
            log.unlink(missing_ok=True)
        super().run()

    def get_ext_filename(self, fullname):
        """Without the ABI of a Python, which the library does not know."""
        return str(Path(*fullname.split(".")[:-1], LIBRARY))

    def build_extensions(self):
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = {
                    source: pool.submit(compile_in_turn, [source], **options)
                    for source in sorted(sources, key=os.path.getsize, reverse=True)
                }
            return [path for source in sources for path in done[source].result()]

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def build_extension(self, ext):
        with tempfile.TemporaryFile() as said:
            try:
                with output_into(said):
                    super().build_extension(ext)
            except Exception as error:
                said.seek(0)
                text = said.read().decode(errors="replace") + f"{error}\n"
                for log in self.logs:
                    log.parent.mkdir(parents=True, exist_ok=True)
                    log.write_text(text, encoding="utf-8")
                raise
            finally:
                said.seek(0)
                sys.stderr.buffer.write(said.read())


class TagWheel(bdist_wheel):
    """Names the wheel for its platform and every Python 3; without the library for any platform."""

    def get_tag(self):
        folder = self.get_finalized_command("build").build_lib
        libraries = list(Path(folder).rglob(LIBRARY))
        if not libraries:
            return "py3", "none", "any"
        platform, glibc = super().get_tag()[2], needed_glibc(libraries[0])
        if glibc is not None and not self.plat_name_supplied:
            # No index takes a tag older than 2.17.
            platform = platform.replace("linux_", "manylinux_{}_{}_".format(*max(glibc, (2, 17))))
        return "py3", "none", platform


def needed_glibc(library):
    """The oldest glibc that has all symbols which a library takes from elsewhere, (2, 34).

    None where it needs more than glibc: then it runs for certain only where it was built.
    """
    try:
        command = ["readelf", "--version-info", str(library)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    needed = said.partition(".gnu.version_r")[2]
    files = set(re.findall(r"File: (\S+?)\.so", needed))
    names = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", needed)
    if not files or files - {"libc", "libm", "libpthread", "libdl", "ld-linux-x86-64", "librt"}:
        return None
    return max((int(major), int(minor)) for major, minor in names)


@contextlib.contextmanager
def output_into(file):
    """Inside, what this process and its children print goes to a file."""
    streams = (sys.stdout, sys.stderr)
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for stream in streams:
            stream.flush()
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": TagWheel},
    ext_modules=[
        Extension(
            "rifflemix.ops.native._kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            language="c++",
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
)
