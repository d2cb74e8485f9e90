"""The stages of the GPU plan, the most valuable first.

A stage is a list of steps; a step is one command that ends within a call or, like the training of
a row, goes on at the next.
"""

from __future__ import annotations

from dataclasses import dataclass

MIXERS = "csp,sliceformer,tssa,butterfly,sinkhorn,softmax"
SANITIZER = "compute-sanitizer"
_KERNELS = ("benchmarks/gpu/kernels.py",)


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: of its log, its marker and its results.
        command: after `python3`; {work} is the folder of its results, {data} that of the data.
        minutes: what it may take; it starts only where as much of the call is left.
        recipe: a row that is trained; it goes on at the next call until it is complete.
        packs: of data that must be there; see `packs.py`.
        tool: program that runs it, where one is needed; without it the step is left out.
        tiny: the command of the dry run, on a CPU; empty where there is none.
    """

    name: str
    command: tuple[str, ...] = ()
    minutes: float = 2.0
    recipe: str = ""
    packs: tuple[str, ...] = ()
    tool: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Steps with one purpose."""

    name: str
    title: str
    steps: tuple[Step, ...]


def _tests(name: str, *which: str, tiny: tuple[str, ...] = ()) -> Step:
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *which)
    return Step(f"tests-{name}", command, minutes=8, tiny=command + tiny if tiny else ())


def _sanitizer(tool: str) -> Step:
    return Step(
        f"sanitizer-{tool}",
        _KERNELS,
        minutes=8,
        tool=(SANITIZER, "--tool", tool, "--error-exitcode", "9"),
        tiny=(*_KERNELS, "--device", "cpu", "--only", "pairs") if tool == "memcheck" else (),
    )


def _bench(what: str, name: str, *options: str, minutes: float, tiny: tuple[str, ...] = ()) -> Step:
    start = ("-m", "rifflemix", "bench", what, "--out", "{work}/" + f"{name}.json")
    limits = ("--device", "cuda", "--max-seconds", "5")
    small = ("--max-seconds", "2", "--repeats", "1")
    return Step(
        f"bench-{name}",
        (*start, *limits, *options),
        minutes=minutes,
        tiny=(*start, *small, *tiny) if tiny else (),
    )


def _row(recipe: str, *packs: str) -> Step:
    command = (
        "-m", "rifflemix", "reproduce", recipe, "--data-dir", "{data}", "--out", "{work}",
        "--precision", "bf16", "--compile", "--device", "cuda",
    )  # fmt: skip
    return Step(recipe.replace("/", "-"), command, minutes=2, recipe=recipe, packs=packs)


_A = Stage(
    "a",
    "the Triton kernels on the device",
    (
        _tests(
            "permutation",
            "tests/ops/permutation/test_permutation_triton.py",
            tiny=("-k", "no_samples", "-m", "not gpu and not slow"),
        ),
        _tests("statistics", "tests/ops/statistics/test_statistics_triton.py"),
        _sanitizer("memcheck"),
        _sanitizer("racecheck"),
        _sanitizer("initcheck"),
        _sanitizer("synccheck"),
    ),
)

_SHAPES = ("8,1024,512,8", "8,4096,512,8", "8,16384,512,8")
_B = Stage(
    "b",
    "speed: operators, layers, models, tiles",
    (
        *(
            _bench(
                "ops",
                f"ops-{shape.split(',')[1]}-{dtype}",
                "--shape",
                shape,
                "--dtype",
                dtype,
                minutes=4,
                tiny=("--shape", "1,16,8,2") if (shape, dtype) == (_SHAPES[0], "bfloat16") else (),
            )
            for shape in _SHAPES
            for dtype in ("bfloat16", "float32")
        ),
        Step(
            "tiles",
            ("benchmarks/gpu/tiles.py", "--out", "{work}/tiles.json"),
            minutes=6,
            tiny=("benchmarks/gpu/tiles.py", "--out", "{work}/tiles.json", "--device", "cpu"),
        ),
        _bench("scaling", "scaling", "--mixers", MIXERS, "--dtype", "bfloat16", minutes=6),
        _bench("scaling", "scaling-peers", "--peers", minutes=8),
        _bench("models", "models-1024", "--shape", "32,1024,256,8", minutes=8),
        _bench("models", "models-4096", "--shape", "8,4096,256,8", minutes=8),
        _bench("layers", "layers", "--shape", "1,64,64,4", "--shape", "8,1024,256,8", minutes=8),
        _bench("published", "published", minutes=4),
        _bench("lra", "lra", minutes=8),
    ),
)

# By host, those that take least time first: a call of minutes ends with whole rows.
_SMALL_HOST = (
    "softmax", "butterfly", "tssa", "csp", "sliceformer", "sinkhorn",
    "linformer", "nystromformer", "performer", "reformer",
)  # fmt: skip
_HOSTS = (
    tuple(f"dimension_mixer/table5-{{}}-{mixer}" for mixer in _SMALL_HOST),
    ("csp/table4-{}", "sliceformer/table2-{}-ascending", "csp/table4-{}-softmax"),
    ("tost/table3-{}-tssa",),
)
TASKS = ("listops", "image", "retrieval", "text", "pathfinder")
_C = Stage(
    "c",
    "Long Range Arena rows in full",
    tuple(_row(row.format(task), task) for rows in _HOSTS for task in TASKS for row in rows),
)

_COLOR = ("cifar-1", "cifar-2")
_D = Stage(
    "d",
    "ViT and CIFAR-10 rows in full",
    tuple(
        _row(recipe, *_COLOR)
        for recipe in (
            "dimension_mixer/table3-butterfly_mlp-e1",
            "dimension_mixer/table4-cifar10-p4-l4-butterfly",
            "dimension_mixer/table4-cifar10-p4-l4-dense",
            "csp/table3-cifar10-csp",
            "csp/table3-cifar10-vit",
            "csp/table3-cifar10-shift",
            "csp/table3-cifar10-sort",
            "tost/table2-cifar10-tost_tiny_16",
        )
    ),
)

STAGES = (_A, _B, _C, _D)
