"""The optional C++ extension; everything else is in pyproject.toml.

It needs neither Python's headers nor torch to build: a plain shared library that
rifflemix.ops.native loads with ctypes. Without a compiler the installation succeeds and the eager
operators serve.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/rifflemix/ops/native")
# -Wno-psabi: functions that pass vectors are inlined, so no call convention can change.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-Wno-psabi", "-pthread"]

setup(
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
    ]
)
