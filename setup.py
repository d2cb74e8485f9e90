"""The optional C++ extension; everything else is in pyproject.toml.

It needs neither Python's headers nor torch to build: a plain shared library that
rifflemix.ops.native loads with ctypes. Without a compiler the installation succeeds and the eager
operators serve.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/rifflemix/ops/native")

setup(
    ext_modules=[
        Extension(
            "rifflemix.ops.native._kernels",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            language="c++",
            # -Wno-psabi: functions that pass vectors are inlined, so no call convention can change.
            extra_compile_args=["-std=c++17", "-O3", "-fno-math-errno", "-Wno-psabi", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
