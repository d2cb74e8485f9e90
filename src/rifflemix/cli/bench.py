"""rifflemix bench: measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from rifflemix.cli.commands import Commands
from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.options import parse_names, parse_threads
from rifflemix.cli.output import (
    DescriptionColumn,
    plain_table,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.errors import bad_argument, require_packages
from rifflemix.lab.runs.options import Device, Json, Option, Threads
from rifflemix.lab.runs.processes import is_main_process

if TYPE_CHECKING:
    from rifflemix.lab.bench.rows import Shape
    from rifflemix.lab.bench.runner import Hooks, Settings

Shapes = Annotated[
    list[str], Option("What to measure at; repeatable.", metavar="BATCH,TOKENS,CHANNELS,HEADS")
]
Mixers = Annotated[str, Option("Names with commas between them; all if unset.")]
Batch = Annotated[int, Option("Sequences.")]
Dim = Annotated[int, Option("Channels.")]
Heads = Annotated[int, Option("Heads, where a layer has them.")]
Causal = Annotated[bool, Option("Causal layers, of the mixers that can be.")]


@dataclass(frozen=True)
class Measurement:
    """Options, progress, Ctrl-C, files and printing that the commands share."""

    dtype: Annotated[str, Option("float32, bfloat16 or float64.")] = "float32"
    device: Device = "cpu"
    repeats: Annotated[int, Option("Timings of each call.")] = 5
    max_seconds: Annotated[
        float, Option("Limit for one pass of one row; what takes longer is left out.")
    ] = 60.0
    threads: Threads | None = None
    out: Annotated[
        Path | None,
        Option("New file for the JSON, or a folder, where it gets its own name.", metavar="PATH"),
    ] = None
    json: Json = False

    def measure(
        self,
        run: Callable[[Settings, Hooks], dict[str, Any]],
        write_more: Callable[[dict[str, Any], Path], Path] | None = None,
    ) -> None:
        """Run, keep, print; exit with 130 after Ctrl-C."""
        from rifflemix.lab.bench.runner import Hooks, Settings
        from rifflemix.lab.runs.device import resolve_device, using_threads

        threads = parse_threads(self.threads)
        settings = Settings(self.dtype, resolve_device(self.device), self.repeats, self.max_seconds)
        file = _File(self.out, has_plot=write_more is not None)
        bar = _Bar(progress_console())
        with (
            using_threads(threads),
            bar,
            StopRequest(bar.note) as stop,
        ):
            result = run(settings, Hooks(bar.update, stop, file.save))
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


@app.command(
    epilog="Examples:  rifflemix bench ops   |   "
    "rifflemix bench ops --shape 8,4096,256,8 --dtype bfloat16 --device cuda --out ops.json"
)
def ops(
    *,
    shape: Shapes | None = None,
    measurement: Measurement,
) -> None:
    """Every operator in every available form, against a copy and softmax attention."""
    from rifflemix.lab.bench.ops import DEFAULT_SHAPES, run

    shapes = _shapes(shape) or DEFAULT_SHAPES
    measurement.measure(lambda settings, hooks: run(shapes, settings, hooks))


@app.command(
    epilog="Examples:  rifflemix bench layers   |   "
    "rifflemix bench layers --shape 1,64,64,4 --shape 8,64,64,4 --mixers csp,tssa --repeats 21"
)
def layers(
    *,
    shape: Shapes | None = None,
    mixers: Mixers | None = None,
    measurement: Measurement,
) -> None:
    """Every mixer as one layer, against softmax; small unless told otherwise: what Python costs."""
    from rifflemix.lab.bench.layers import DEFAULT_SHAPES, run

    shapes = _shapes(shape) or DEFAULT_SHAPES
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(shapes, mixers=names, settings=settings, hooks=hooks)
    )


@app.command(
    epilog="Examples:  rifflemix bench models   |   "
    "rifflemix bench models --shape 4,4096,256,8 --layers 2 --mixers tssa,csp --out models.json"
    "   |   rifflemix bench models --model vit --layers 12 --peers"
)
def models(
    *,
    shape: Shapes | None = None,
    model: Annotated[str, Option("encoder, of bytes, or vit, of square images.")] = "encoder",
    layers: Annotated[int, Option("Blocks of the model.")] = 4,
    mixers: Mixers | None = None,
    peers: Annotated[
        bool, Option("Let BERT of transformers, or timm's vision transformer, take part.")
    ] = False,
    measurement: Measurement,
) -> None:
    """Inference and training of a model with every mixer, against no mixer and softmax."""
    from rifflemix.lab.bench.models import run

    shapes = _shapes(shape)
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(
            shapes,
            model=model,
            layers=layers,
            mixers=names,
            peers=peers,
            settings=settings,
            hooks=hooks,
        )
    )


@app.command(
    epilog="Examples:  rifflemix bench published --device cuda   |   "
    "rifflemix bench published --rows dimension_mixer/table4-cifar10-p4-l4-dense --batch 8"
)
def published(
    *,
    rows: Annotated[str | None, Option("Recipes with commas between them; all if unset.")] = None,
    batch: Annotated[int | None, Option("Samples of a step; the paper's if unset.")] = None,
    measurement: Measurement,
) -> None:
    """Rows whose papers print the time and memory of a training step, theirs beside ours."""
    from rifflemix.lab.bench.published import run

    names = None if rows is None else parse_names(rows, "--rows")
    measurement.measure(
        lambda settings, hooks: run(names, batch=batch, settings=settings, hooks=hooks)
    )


@app.command(
    epilog="Examples:  rifflemix bench scaling --out benchmarks/results   |   "
    "rifflemix bench scaling --tokens 196,1024,4096,16384,65536 --mixers tssa,csp --peers   |   "
    "rifflemix bench scaling --tokens 1024 --dims 96,192,384,768 --causal"
)
def scaling(
    *,
    tokens: Annotated[
        str | None,
        Option("Numbers of tokens; 256 to 16384 if unset.", metavar="N,N,..."),
    ] = None,
    batch: Batch = 1,
    dim: Dim = 512,
    dims: Annotated[
        str | None,
        Option("Numbers of channels, at one number of tokens; replaces --dim.", metavar="C,C,..."),
    ] = None,
    heads: Heads = 8,
    mixers: Mixers | None = None,
    causal: Causal = False,
    peers: Annotated[bool, Option("Let layers of other installed packages take part.")] = False,
    measurement: Measurement,
) -> None:
    """Every mixer as a layer over a range of N or C: growth, crossover with softmax, plot.

    The plot is written beside the JSON.
    """
    from rifflemix.lab.bench.scaling import DEFAULT_TOKENS, run

    if measurement.out is not None:
        require_packages("the plot", "compare", "matplotlib")
    lengths = DEFAULT_TOKENS if tokens is None else _numbers(tokens, "--tokens", "N,N,...")
    widths = None if dims is None else _numbers(dims, "--dims", "C,C,...")
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(
            lengths,
            batch=batch,
            dim=dim,
            dims=widths,
            heads=heads,
            mixers=names,
            causal=causal,
            peers=peers,
            settings=settings,
            hooks=hooks,
        ),
        _write_plot,
    )


@app.command(
    epilog="Examples:  rifflemix bench decode   |   "
    "rifflemix bench decode --contexts 1024,65536 --mixers tssa,csp --out benchmarks/results"
)
def decode(
    *,
    contexts: Annotated[
        str | None,
        Option("Tokens before the new one; 1024, 16384, 262144 if unset.", metavar="N,N,..."),
    ] = None,
    batch: Batch = 1,
    dim: Dim = 512,
    heads: Heads = 8,
    mixers: Mixers | None = None,
    measurement: Measurement,
) -> None:
    """One more token after long contexts, of every mixer that streams, against a cache."""
    from rifflemix.lab.bench.decode import DEFAULT_CONTEXTS, run

    lengths = DEFAULT_CONTEXTS if contexts is None else _numbers(contexts, "--contexts", "N,N,...")
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(
            lengths,
            batch=batch,
            dim=dim,
            heads=heads,
            mixers=names,
            settings=settings,
            hooks=hooks,
        )
    )


@app.command(
    epilog="Examples:  torchrun --nproc-per-node 4 -m rifflemix bench parallel   |   "
    "torchrun --nproc-per-node 2 -m rifflemix bench parallel --tokens 1024,8192 --mixers tssa,csp "
    "--causal --out benchmarks/results"
)
def parallel(
    *,
    tokens: Annotated[
        str | None,
        Option("Numbers of tokens; 1024, 4096, 16384 if unset.", metavar="N,N,..."),
    ] = None,
    batch: Batch = 1,
    dim: Dim = 512,
    heads: Heads = 8,
    mixers: Mixers | None = None,
    causal: Causal = False,
    measurement: Measurement,
) -> None:
    """Layers whose tokens torchrun's processes share: time, memory, bytes sent, against one."""
    from rifflemix.lab.bench.parallel import DEFAULT_TOKENS, run

    lengths = DEFAULT_TOKENS if tokens is None else _numbers(tokens, "--tokens", "N,N,...")
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(
            lengths,
            batch=batch,
            dim=dim,
            heads=heads,
            mixers=names,
            causal=causal,
            settings=settings,
            hooks=hooks,
        )
    )


@app.command(
    epilog="Examples:  rifflemix bench lra --device cuda --out benchmarks/results   |   "
    "rifflemix bench lra --tokens 1024 --batch 2 --mixers sliceformer,linformer"
)
def lra(
    *,
    tokens: Annotated[
        str | None, Option("1024 to 4096 if unset, as the paper.", metavar="N,N,...")
    ] = None,
    batch: Batch = 32,
    mixers: Mixers | None = None,
    measurement: Measurement,
) -> None:
    """Long Range Arena models, beside the figures of the Sliceformer paper's Table III."""
    from rifflemix.lab.bench.lra import run
    from rifflemix.lab.bench.printed_speed import LENGTHS

    lengths = LENGTHS if tokens is None else _numbers(tokens, "--tokens", "N,N,...")
    names = None if mixers is None else parse_names(mixers, "--mixers")
    measurement.measure(
        lambda settings, hooks: run(
            lengths, batch=batch, mixers=names, settings=settings, hooks=hooks
        )
    )


def _write_plot(result: dict[str, Any], file: Path) -> Path:
    from rifflemix.files import write_bytes
    from rifflemix.lab.bench.scaling_plot import scaling_plot

    plot = _plot_of(file)
    write_bytes(plot, scaling_plot(result))
    return plot


def _plot_of(file: Path) -> Path:
    return file.with_suffix(".png")


class _File:
    """The file of a result; it is written again as the result grows, by the main process alone.

    Raises:
        InputError: a file that is there already, or a path that cannot be written.
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
        """Write what there is so far."""
        from rifflemix.files import make_folder, write_json
        from rifflemix.lab.bench.rows import new_file, result_name

        if self._out is None or not is_main_process():
            return
        if self._path is None and _is_file(self._out):
            self._check_new()  # others may have been faster
            self._path = self._out
        elif self._path is None:
            make_folder(self._out)
            self._path = new_file(self._out, result_name(result))
        write_json(self._path, result)

    def _check_new(self) -> None:
        if self._out is not None and self._out.exists():
            raise bad_argument("--out", "a new file or a folder", f"{self._out}, which exists")

    def paths(self) -> list[Path]:
        """The file, once something was written."""
        return [] if self._path is None else [self._path]


def _is_file(out: Path) -> bool:
    """Whether --out names a file: folders have no suffix, or are there."""
    return bool(out.suffix) and not out.is_dir()


class _Bar:
    """A bar on a terminal, and a line every group of measurements elsewhere."""

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
        """Start to show."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to show."""
        self._bar.stop()

    def update(self, done: int, total: int, text: str) -> None:
        """Show how far the measurement has come."""
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
