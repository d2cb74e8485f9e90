"""The optional C++ extension; everything else is in pyproject.toml.

It needs neither Python's headers nor torch to build: a plain shared library that
rifflemix.ops.native loads with ctypes. Without a compiler the installation succeeds and the eager
operators serve; what the compiler said then lies beside the sources, where `rifflemix doctor`
shows it.
"""

import contextlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/rifflemix/ops/native")
LOG = "_kernels_build.txt"  # rifflemix.ops.native reads it
# -Wno-psabi: functions that pass vectors are inlined, so no call convention can change.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-Wno-psabi", "-pthread"]


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
    cmdclass={"build_ext": BuildKernels},
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
