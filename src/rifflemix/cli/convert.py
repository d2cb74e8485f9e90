"""rifflemix convert: convert a trained model to another mixer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rifflemix.cli.commands import parse_path
from rifflemix.cli.output import (
    DataProgress,
    StopRequest,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.errors import EXIT_INTERRUPTED, bad_argument
from rifflemix.lab.report.units import format_metric
from rifflemix.lab.runs.options import DataDir, Device, Json, Option, Out, RunSeed, Seed

if TYPE_CHECKING:
    from rifflemix.lab.conversion.source import Saved

EPILOG = """Examples:

  rifflemix convert runs/softmax --mixer linear --keep 1 --out runs/linear

  rifflemix convert models/minilm --mixer linear --data sentences.txt --out runs/minilm

  rifflemix convert models/gpt2 --mixer tssa --data book.txt --keep 4 --lengths 1024 --out runs/gpt2

MODEL is a run of softmax attention, which learns from its training data. Or it is a folder that
save_pretrained of transformers wrote, with its tokenizer. The converted model is in the folder
`model` below --out; a converted run works with predict, generate and export. Ctrl-C stops after the
current step; the same command continues.
"""


def convert(
    model: Annotated[Path, typer.Argument(help="Folder of the model.", parser=parse_path)],
    mixer: Annotated[str, Option("Mixer; see `rifflemix list mixers`.")],
    out: Out,
    data: Annotated[
        Path | None,
        Option(
            "Text file; each line is a sample. For a run: its data, if it has moved.",
            metavar="PATH",
        ),
    ] = None,
    data_dir: DataDir | None = None,
    run_seed: RunSeed | None = None,
    steps: Annotated[
        str, Option("Steps in all, or of stages: layers=200,outputs=100.", metavar="N")
    ] = "300",
    layers: Annotated[str, Option("Layers to convert, such as 0,2,3.", metavar="LIST")] = "all",
    keep: Annotated[int | None, Option("Number of layers that keep their attention.")] = None,
    max_error: Annotated[float | None, Option("Largest error of the converted layers.")] = None,
    min_speedup: Annotated[float | None, Option("Smallest speed-up at the last length.")] = None,
    batch_size: Annotated[
        int | None, Option("Samples per step; as in training, or 16 texts, if unset.")
    ] = None,
    length: Annotated[
        int | None, Option("Tokens per text; longer texts are cut. 128 if unset.")
    ] = None,
    lengths: Annotated[
        str | None,
        Option(
            "Numbers of tokens to measure time and memory at; 128,512 if unset. A run is measured "
            "with a batch of its data.",
            metavar="LIST",
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Convert a trained model to another mixer, and report error and speed."""
    from rifflemix.lab.conversion import convert as convert_model
    from rifflemix.lab.conversion.own_runs import run_source
    from rifflemix.lab.conversion.stages import STAGES
    from rifflemix.lab.conversion.texts import is_of_transformers, text_source
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.runs.environment import check_device, resolve_device

    given = _steps(steps)
    chosen = "all" if layers == "all" else _integers("--layers", layers)
    device = resolve_device(device)
    check_device(device)
    if not model.is_dir():
        expected = "a folder of a run, or of transformers with config.json"
        raise bad_argument("MODEL", expected, str(model))
    if is_of_transformers(model):
        _check_unset("a folder of transformers", data_dir=data_dir, run_seed=run_seed)
        if data is None:
            raise bad_argument("--data", "a text file", "none")
        sizes = _integers("--lengths", lengths or "128,512")
        source = text_source(model, data, length or 128, batch_size or 16, sizes, seed)
    else:
        _check_unset("a run", length=length, lengths=lengths)
        count = sum(given.values()) if isinstance(given, dict) else given
        with DataProgress(progress_console()) as progress:
            source = run_source(
                model, run_seed, data_dir, data, progress,
                steps=count, batch_size=batch_size, seed=seed, device=device,
            )  # fmt: skip
    source.model.to(device)
    names = list(given) if isinstance(given, dict) else list(STAGES)
    live = live_progress(progress_console(), {name: name for name in names}, [seed])
    with live, StopRequest(live.note) as stop:
        report = convert_model(
            source.model,
            mixer,
            source.batches,
            layers=chosen,
            steps=given,
            loss=source.loss,
            validation=source.validation,
            score=source.score,
            match=source.match,
            keep=keep,
            max_error=max_error,
            min_speedup=min_speedup,
            mixer_options=source.options_of(mixer),
            make_inputs=source.make_inputs,
            lengths=source.lengths,
            seed=seed,
            out=out,
            on_status=live.update,
            should_stop=stop,
        )
    if not report.finished:
        tell(progress_console(), "stopped; run the same command to continue")
        raise typer.Exit(EXIT_INTERRUPTED)
    _write(source.save(report, out), json)


def _check_unset(what: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise bad_argument(f"--{name.replace('_', '-')}", f"none with {what}", value)


def _write(saved: Saved, json: bool) -> None:
    if json:
        print_json(saved.to_dict())
        return
    for line in str(saved.report).splitlines():
        show(line)
    if (scores := saved.scores) is not None:
        name = scores.metric.replace("_", " ")
        for split in scores.before:
            before, after = (
                format_metric(scores.metric, values[split])
                for values in (scores.before, scores.after)
            )
            show(f"{split} {name}: {before} before, {after} after")
    show(f"written to {saved.model}")


def _steps(text: str) -> int | dict[str, int]:
    """Read "300" or "layers=200,outputs=100"."""
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.partition("=") for part in text.split(",")]
        return {name.strip(): int(number) for name, _, number in pairs}
    except ValueError:
        raise bad_argument("--steps", "a number, or STAGE=NUMBER with commas", text) from None


def _integers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise bad_argument(name, "whole numbers with commas", text) from None
