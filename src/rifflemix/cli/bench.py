"""rifflemix bench: measure time and memory."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from rifflemix.cli.commands import Commands
from rifflemix.cli.options import parse_names, parse_threads
from rifflemix.cli.output import (
    DescriptionColumn,
    StopRequest,
    plain_table,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.errors import EXIT_INTERRUPTED, bad_argument, require_packages
from rifflemix.lab.runs.options import Device, Json, Option, Threads, is_main_process

if TYPE_CHECKING:
    from rifflemix.lab.bench.rows import Shape

Shapes = Annotated[
    list[str] | None, Option("Shape to measure; repeatable.", metavar="BATCH,TOKENS,CHANNELS,HEADS")
]
Mixers = Annotated[str | None, Option("Names separated by commas; all by default.")]
Batch = Annotated[int, Option("Number of sequences.")]
Dim = Annotated[int, Option("Number of channels.")]
Heads = Annotated[int, Option("Number of heads, for layers with heads.")]
Causal = Annotated[bool, Option("Build causal layers.")]
_SIZES: dict[str, tuple[Any, Any]] = {"batch": (Batch, 1), "dim": (Dim, 512), "heads": (Heads, 8)}


def _numbers_option(what: str, metavar: str = "N,N,...") -> tuple[Any, None]:
    return Annotated[str | None, Option(what, metavar=metavar)], None


@dataclass(frozen=True)
class Measurement:
    """Options of all benchmarks. It runs a benchmark, shows progress, and writes the result."""

    dtype: Annotated[str, Option("Data type: float32, bfloat16 or float64.")] = "float32"
    device: Device = "cpu"
    repeats: Annotated[int, Option("Number of timings of each call.")] = 5
    max_seconds: Annotated[
        float, Option("Time limit for one pass of one candidate; slower ones are left out.")
    ] = 60.0
    threads: Threads | None = None
    out: Annotated[
        Path | None,
        Option("New file for the JSON, or a folder for a file with a dated name.", metavar="PATH"),
    ] = None
    json: Json = False

    def measure(
        self,
        run: Callable[..., dict[str, Any]],
        write_more: Callable[[dict[str, Any], Path], Path] | None = None,
    ) -> None:
        """Run, write and print. Exit with code 130 after Ctrl-C."""
        from rifflemix.lab.bench.runner import Hooks, Settings
        from rifflemix.lab.runs.environment import resolve_device, using_threads

        threads = parse_threads(self.threads)
        settings = Settings(self.dtype, resolve_device(self.device), self.repeats, self.max_seconds)
        file = _File(self.out, has_plot=write_more is not None)
        bar = _Bar(progress_console())
        with (
            using_threads(threads),
            bar,
            StopRequest(bar.note) as stop,
        ):
            hooks = Hooks(bar.update, stop, file.save)
            result = run(settings=settings, hooks=hooks)
        if is_main_process():
            self._tell(result, file, write_more)
        if result["status"] != "complete":
            raise typer.Exit(EXIT_INTERRUPTED)

    def _tell(
        self,
        result: dict[str, Any],
        file: _File,
        write_more: Callable[[dict[str, Any], Path], Path] | None,
    ) -> None:
        written = file.paths()
        if written and write_more is not None:
            written.append(write_more(result, written[0]))
        if self.json:
            print_json(result)
        else:
            _show(result, written)


app = Commands(help="Measure time and memory: correctness first, then speed.")


# Name of the module in rifflemix.lab.bench -> help, examples and options with their defaults.
_BENCHMARKS: dict[str, tuple[str, str, dict[str, tuple[Any, Any]]]] = {
    "ops": (
        "Measure each operator with each backend, next to a copy and softmax attention.",
        "rifflemix bench ops   |   "
        "rifflemix bench ops --shape 8,4096,256,8 --dtype bfloat16 --device cuda --out ops.json",
        {"shape": (Shapes, None)},
    ),
    "layers": (
        "Measure each mixer as one layer, next to softmax. Small shapes show the cost of Python.",
        "rifflemix bench layers   |   "
        "rifflemix bench layers --shape 1,64,64,4 --shape 8,64,64,4 --mixers csp,tssa --repeats 21",
        {"shape": (Shapes, None), "mixers": (Mixers, None)},
    ),
    "models": (
        "Measure inference and training of a model with each mixer, without one, and softmax.",
        "rifflemix bench models   |   "
        "rifflemix bench models --shape 4,4096,256,8 --layers 2 --mixers tssa,csp --out models.json"
        "   |   rifflemix bench models --model vit --layers 12 --peers",
        {
            "shape": (Shapes, None),
            "model": (Annotated[str, Option("encoder (bytes) or vit (square images).")], "encoder"),
            "layers": (Annotated[int, Option("Number of blocks.")], 4),
            "mixers": (Mixers, None),
            "peers": (
                Annotated[bool, Option("Include BERT of transformers, or the ViT of timm.")],
                False,
            ),
        },
    ),
    "published": (
        "Measure recipes of papers that report the time and memory of a training step.",
        "rifflemix bench published --device cuda   |   "
        "rifflemix bench published --rows dimension_mixer/table4-cifar10-p4-l4-dense --batch 8",
        {
            "rows": (
                Annotated[str | None, Option("Recipes separated by commas; all by default.")],
                None,
            ),
            "batch": (
                Annotated[int | None, Option("Samples per step; the paper's by default.")],
                None,
            ),
        },
    ),
    "scaling": (
        "Measure layers over a range of N or C, and plot growth and crossover with softmax.\n\n"
        "The plot is written next to the JSON.",
        "rifflemix bench scaling --out runs/bench   |   "
        "rifflemix bench scaling --tokens 196,1024,4096,16384,65536 --mixers tssa,csp --peers   |  "
        " rifflemix bench scaling --tokens 1024 --dims 96,192,384,768 --causal",
        {
            "tokens": _numbers_option("Numbers of tokens; 256 to 16384 by default."),
            **_SIZES,
            "dims": _numbers_option(
                "Numbers of channels for one number of tokens; replaces --dim.", "C,C,..."
            ),
            "mixers": (Mixers, None),
            "causal": (Causal, False),
            "peers": (Annotated[bool, Option("Include layers of installed packages.")], False),
        },
    ),
    "decode": (
        "Measure a decoding step after long contexts, next to attention with a cache.",
        "rifflemix bench decode   |   "
        "rifflemix bench decode --contexts 1024,65536 --mixers tssa,csp --out runs/bench",
        {
            "contexts": _numbers_option(
                "Numbers of earlier tokens; 1024, 16384 and 262144 by default."
            ),
            **_SIZES,
            "mixers": (Mixers, None),
        },
    ),
    "parallel": (
        "Measure layers that share one sequence over the processes of torchrun.",
        "torchrun --nproc-per-node 4 -m rifflemix bench parallel   |   "
        "torchrun --nproc-per-node 2 -m rifflemix bench parallel --tokens 1024,8192 "
        "--mixers tssa,csp --causal --out runs/bench",
        {
            "tokens": _numbers_option("Numbers of tokens; 1024, 4096 and 16384 by default."),
            **_SIZES,
            "mixers": (Mixers, None),
            "causal": (Causal, False),
        },
    ),
    "lra": (
        "Measure Long Range Arena models, next to the Sliceformer paper's Table III.",
        "rifflemix bench lra --device cuda --out runs/bench   |   "
        "rifflemix bench lra --tokens 1024 --batch 2 --mixers sliceformer,linformer",
        {
            "tokens": _numbers_option("Numbers of tokens; 1024 to 4096 by default, as the paper."),
            "batch": (Batch, 32),
            "mixers": (Mixers, None),
        },
    ),
}


def _command_of(name: str) -> Callable[..., None]:
    """Return the command of a benchmark, which parses options and calls `run`."""
    options = _BENCHMARKS[name][2]

    def command(*, measurement: Measurement, **given: Any) -> None:
        run = importlib.import_module(f"rifflemix.lab.bench.{name}").run
        has_plot = name == "scaling"
        if has_plot and measurement.out is not None:
            require_packages("the plot", "compare", "matplotlib")
        arguments = dict(_parsed(key, value) for key, value in given.items() if value is not None)
        measurement.measure(partial(run, **arguments), _write_plot if has_plot else None)

    kinds = {key: kind for key, (kind, _) in options.items()} | {"measurement": Measurement}
    command.__name__, command.__doc__ = name, _BENCHMARKS[name][0]
    command.__annotations__ = kinds
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
            for key, (_, default) in {**options, "measurement": (None, None)}.items()
        ]
    )
    return command


def _parsed(option: str, value: Any) -> tuple[str, Any]:
    """Return the name and the value of an argument of `run`."""
    if option == "shape":
        return "shapes", _shapes(value)
    if option in ("mixers", "rows"):
        return ("names" if option == "rows" else option), parse_names(value, f"--{option}")
    if option in ("tokens", "contexts", "dims"):
        wanted = "C,C,..." if option == "dims" else "N,N,..."
        return option, _numbers(value, f"--{option}", wanted)
    return option, value


for _name in _BENCHMARKS:
    app.command(epilog=f"Examples:  {_BENCHMARKS[_name][1]}")(_command_of(_name))


def _write_plot(result: dict[str, Any], file: Path) -> Path:
    from rifflemix.files import write_bytes
    from rifflemix.lab.bench.plots import scaling_plot

    plot = _plot_of(file)
    write_bytes(plot, scaling_plot(result))
    return plot


def _plot_of(file: Path) -> Path:
    return file.with_suffix(".png")


class _File:
    """File of a result. The main process writes it again after each group.

    Raises:
        InputError: the file exists, or the path cannot be written.
    """

    def __init__(self, out: Path | None, *, has_plot: bool = False) -> None:
        from rifflemix.lab.runs.folder import check_folder, check_new_path

        self._out = out
        self._path: Path | None = None
        if out is None:
            return
        try:
            check_new_path(out)
        except OSError as error:
            got = f"{str(out)[:200]} ({error.strerror})"
            raise bad_argument("--out", "a path that can be written", got) from None
        if not _is_file(out):
            check_folder(out)
            return
        self._check_new()
        if has_plot and ((plot := _plot_of(out)) == out or plot.exists()):
            wanted = "a file for the JSON whose plot, of the same name, is new"
            raise bad_argument("--out", wanted, f"{out}, whose plot is {plot}")
        if not out.absolute().parent.is_dir():
            raise bad_argument("--out", "a file in a folder that exists", str(out))
        check_folder(out.absolute().parent)

    def save(self, result: dict[str, Any]) -> None:
        """Write the partial result."""
        from rifflemix.files import make_folder, write_json
        from rifflemix.lab.bench.rows import new_file, result_name

        if self._out is None or not is_main_process():
            return
        if self._path is None and _is_file(self._out):
            self._check_new()  # another process may have written it
            self._path = self._out
        elif self._path is None:
            make_folder(self._out)
            self._path = new_file(self._out, result_name(result))
        write_json(self._path, result)

    def _check_new(self) -> None:
        if self._out is not None and self._out.exists():
            raise bad_argument("--out", "a new file or a folder", f"{self._out}, which exists")

    def paths(self) -> list[Path]:
        """Return the file, if it was written."""
        return [] if self._path is None else [self._path]


def _is_file(out: Path) -> bool:
    """Return whether --out names a file: it has a suffix and is not an existing folder."""
    return bool(out.suffix) and not out.is_dir()


class _Bar:
    """Progress bar on a terminal; otherwise one line per group of measurements."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            DescriptionColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> _Bar:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Hide the bar."""
        self._bar.stop()

    def update(self, done: int, total: int, text: str) -> None:
        """Show the progress."""
        self._bar.update(self._task, completed=done, total=total, description=text)
        if not self._console.is_terminal and text.startswith("timing"):
            self.note(f"{done}/{total} {text}")

    def note(self, text: str) -> None:
        """Print a line."""
        tell(self._console, text)


def _shapes(texts: list[str] | None) -> tuple[Shape, ...]:
    from rifflemix.lab.bench.rows import Shape

    wanted = "BATCH,TOKENS,CHANNELS,HEADS"
    return tuple(Shape(*_numbers(text, "--shape", wanted, count=4)) for text in texts or ())


def _numbers(text: str, option: str, wanted: str, *, count: int | None = None) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or (count is not None and len(numbers) != count):
        raise bad_argument(option, wanted, repr(text))
    return numbers


def _show(result: dict[str, Any], written: list[Path]) -> None:
    from rifflemix.lab.bench.tables import bench_notes, bench_tables

    for table in bench_tables(result):
        show(table.title)
        show(plain_table(table.headers, table.rows))
    for note in bench_notes(result):
        show(note)
    if written:
        show(f"Written to {', '.join(str(path) for path in written)}")
