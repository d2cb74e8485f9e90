"""The stages of the GPU plan, the most valuable first.

A stage is a list of steps; a step is one command that ends within a call or, like the training of
a row, goes on at the next.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

MIXERS = "csp,sliceformer,tssa,butterfly,sinkhorn,softmax"
SANITIZER = "compute-sanitizer"
_KERNELS = ("benchmarks/gpu/kernels.py",)
# Kernels are compiled for every test: that is what the tests wait for.
_WORKERS = ("-n", "8") if importlib.util.find_spec("xdist") else ()


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
    # Warnings of packages that are as the machine has them are not ours.
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *which)
    small = command + tiny if tiny else ()
    return Step(f"tests-{name}", (*command, *_WORKERS), minutes=8, tiny=small)


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


def _row(
    recipe: str, *packs: str, seed: int = 0, compiled: bool = True, precision: str = "bf16"
) -> Step:
    command = (
        "-m", "rifflemix", "reproduce", recipe, "--data-dir", "{data}", "--out", "{work}",
        "--precision", precision, *(("--compile",) if compiled else ()), "--device", "cuda",
        "--threads", "1", "--seed", str(seed),
    )  # fmt: skip
    name = recipe.replace("/", "-") + (f"-seed{seed}" if seed else "")
    return Step(name, command, minutes=2, recipe=recipe, packs=packs)


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
        _tests(
            "sinkhorn",
            "tests/ops/sinkhorn/test_balancing_triton.py",
            "tests/ops/sinkhorn/test_attention_triton.py",
        ),
        _sanitizer("memcheck"),
        _sanitizer("racecheck"),
        _sanitizer("initcheck"),
        _sanitizer("synccheck"),
    ),
)

_FORMS = ("benchmarks/layer_forms.py", "--out", "{work}")
_FORMS_ON_A_GPU = (*_FORMS, "--dtype", "bfloat16", "--device", "cuda")
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
                tiny=("--shape", "1,4,4,1") if (shape, dtype) == (_SHAPES[0], "bfloat16") else (),
            )
            for shape in _SHAPES
            for dtype in ("bfloat16", "float32")
        ),
        Step(
            "device-times",
            ("benchmarks/gpu/device_times.py", "--out", "{work}/device-times.json"),
            minutes=4,
        ),
        Step(
            "layer-times",
            ("benchmarks/gpu/layer_times.py", "--out", "{work}/layer-times.json"),
            minutes=4,
        ),
        Step(
            "layer-forms",
            _FORMS_ON_A_GPU,
            minutes=3,
            tiny=(*_FORMS, "--mixers", "tssa", "--repeats", "1"),
        ),
        Step(
            "layer-forms-eager",
            (*_FORMS_ON_A_GPU, "--mixers", "sinkhorn", "--backend", "eager"),
            minutes=2,
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
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
_TABLE5 = "dimension_mixer/table5"
_SMALL_HOST = (
    "softmax", "butterfly", "tssa", "csp", "sliceformer", "sinkhorn",
    "linformer", "nystromformer", "performer", "reformer", "flash",
)  # fmt: skip
# Of these the spread between seeds is shown, or whether another one leaves the commonest answer.
_SEEDED = (
    "softmax", "butterfly", "tssa", "linformer", "nystromformer",
    "csp", "sliceformer", "performer",
)  # fmt: skip
_LARGER_HOSTS = (
    ("csp/table4-{}", "sliceformer/table2-{}-ascending", "csp/table4-{}-softmax"),
    ("tost/table3-{}-tssa",),
)
# ListOps is generated over there, which takes less time than to bring it.
_PACKS = {task: () if task == "listops" else (task,) for task in TASKS}
_GENERATE = "from rifflemix.lab.tasks import prepare_task; prepare_task('listops')"
_C = Stage(
    "c",
    "Long Range Arena rows in full",
    (
        Step("data-listops", ("-c", _GENERATE), minutes=2),
        # Of sequences of any length: they were run without the compiler.
        *(
            _row(f"{_TABLE5}-listops-{mixer}", seed=seed, compiled=False)
            for seed in (0, 1, 2)
            for mixer in (_SEEDED if seed else _SMALL_HOST)
        ),
        *(
            _row(f"{_TABLE5}-{task}-{mixer}", *_PACKS[task])
            for task in TASKS[1:]
            for mixer in _SMALL_HOST
        ),
        *(
            _row(row.format(task), *_PACKS[task])
            for rows in _LARGER_HOSTS
            for task in TASKS
            for row in rows
        ),
    ),
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

_SENTIMENT = ("b8", "b16", "b32", "sortcut-b8", "sortcut-b16", "sortcut-b32", "transformer")
_E = Stage(
    "e",
    "sentiment rows of Sinkhorn attention in full",
    tuple(
        _row(f"sinkhorn/table6-{column}-{row}", pack, compiled=False, precision="float32")
        for column, pack in (
            ("sst-word", "sst"),
            ("sst-char", "sst"),
            ("imdb-word", "text"),
            ("imdb-char", "text"),
        )
        for row in _SENTIMENT
    ),
)

STAGES = (_A, _B, _C, _D, _E)
