"""Build the kernels with a sanitizer, next to the installed kernels, and run their tests.

    python tests/attack/sanitize.py address|thread [arguments of pytest]

"address" is AddressSanitizer with UndefinedBehaviorSanitizer; the first finding ends the run.
No finding is suppressed, but leaks are not checked: Python and torch keep memory until they
end.

"thread" is ThreadSanitizer. It cannot see how the threads of an OpenMP library synchronize,
because the library is not instrumented, and would report every use of them. Therefore the
kernels start their own threads here, as on systems without torch's thread team, and torch uses
one thread.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = REPOSITORY / "src" / "rifflemix" / "ops" / "native"
BUILD = REPOSITORY / "build" / "sanitize"
LIBRARY = "_kernels.so"  # file name in rifflemix.ops.native
# Flags of setup.py, with one instruction set: the loader that selects a function clone runs before
# the sanitizer is ready.
FLAGS = [
    "-std=c++17", "-O1", "-g1", "-fno-omit-frame-pointer", "-fno-math-errno", "-Wno-psabi",
    "-pthread", "-fPIC", "-DRIFFLEMIX_ONE_INSTRUCTION_SET",
]  # fmt: skip
KINDS: dict[str, dict[str, list[str]]] = {
    "address": {
        "flags": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
        "libraries": ["libasan.so", "libubsan.so", "libstdc++.so"],
    },
    "thread": {
        "flags": ["-fsanitize=thread", "-DRIFFLEMIX_OWN_THREADS"],
        "libraries": ["libtsan.so", "libstdc++.so"],
    },
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # A report fails the run, but the run continues to find more.
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
}
REPORT = re.compile(r"(ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:).*")
# Tests with boundary sizes, masks, layouts, long indices and gradients. They take minutes, not
# hours.
TESTS = [
    "tests/ops/permutation/test_permutation_cpu.py",
    "tests/ops/permutation/test_permutation_graphs.py",
    "tests/ops/statistics/test_statistics_cpu.py",
    "tests/ops/dropout", "tests/ops/butterfly", "tests/ops/sinkhorn",
    "tests/ops/test_registered_operators.py", "tests/attack/test_operators.py",
    "-k", "not compile and not export and not instruction_sets and not meta and not memory",
]  # fmt: skip


def build(kind: str) -> Path:
    """Compile the library if a source is newer, and return its folder."""
    folder = BUILD / kind
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    sources = sorted(NATIVE.glob("*.cpp"), key=os.path.getsize, reverse=True)
    newest = max(path.stat().st_mtime for path in (*sources, *NATIVE.glob("*.h"), Path(__file__)))
    if library.exists() and library.stat().st_mtime > newest:
        return folder
    flags = [*FLAGS, *KINDS[kind]["flags"], *instructions()]

    def compile_one(source: Path) -> str:
        out = folder / f"{source.stem}.o"
        subprocess.run(["g++", *flags, "-c", str(source), "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run(["g++", *flags, "-shared", *objects, "-o", str(library)], check=True)
    return folder


def instructions() -> list[str]:
    """Return the compiler flag for the vector instructions of this processor."""
    known = Path("/proc/cpuinfo")
    has_avx2 = known.exists() and " avx2 " in known.read_text()
    return ["-march=x86-64-v3"] if has_avx2 else []


def preloaded(kind: str) -> str:
    found = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in KINDS[kind]["libraries"]
    ]
    return ":".join(found)


def run(kind: str, arguments: list[str]) -> int:
    folder = build(kind)
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "LD_PRELOAD": preloaded(kind),
        "RIFFLEMIX_KERNELS": str(folder),
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "src"), str(Path(__file__).parent))),
        "OMP_NUM_THREADS": "1" if kind == "thread" else "2",
        "HYPOTHESIS_PROFILE": "default",
    }
    if kind == "thread":
        environment["RIFFLEMIX_KERNEL_THREADS"] = "3"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "--timeout",
        "0",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "sanitized_kernels", *(arguments or TESTS)]
    started, log = time.monotonic(), BUILD / f"{kind}.log"
    with log.open("w") as stream:
        code = subprocess.run(
            command, cwd=REPOSITORY, env=environment, stdout=stream, stderr=subprocess.STDOUT
        ).returncode
    text = log.read_text(errors="replace")
    reports = [match[0] for match in REPORT.finditer(text)]
    last = next((line for line in reversed(text.splitlines()) if " passed" in line), "")
    result = {
        "format": "rifflemix.sanitize/1",
        "sanitizer": kind,
        "arguments": arguments or TESTS,
        "exit_code": code,
        "reports": sorted(set(reports)),
        "tests": re.sub(r" in .*|^=+ | =+$", "", last),
        "seconds": round(time.monotonic() - started),
    }
    (BUILD / f"{kind}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1), f"everything that was printed: {log}", sep="\n")
    return 1 if code or reports else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
