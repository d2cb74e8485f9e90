"""rifflemix analyze: inspect a trained model or an untrained preset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rifflemix.cli.options import parse_model_settings, parse_names
from rifflemix.cli.output import DataProgress, print_json, progress_console, show
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import DataDir, Json, Option, Seed, Threads

EPILOG = """Examples:

  rifflemix analyze spectrum runs/three --out looks/three

  rifflemix analyze all runs/tssa --out looks/tssa

  rifflemix analyze collapse encoder --mixers softmax,csp --set num_layers=24 --out looks/fresh

TARGET is the folder of a run of train, compare, reproduce or sweep, or a name from `rifflemix list
models`. Such a model has random weights and random inputs. KIND is a name from `rifflemix list
analyses`, or all.
"""


def analyze(
    kind: Annotated[str, typer.Argument(help="Name of an analysis, or all.")],
    target: Annotated[str, typer.Argument(help="Folder of a run, or name of a model.")],
    out: Annotated[Path, Option("Folder for numbers, pictures and the page.", metavar="PATH")],
    samples: Annotated[
        int, Option("Number of samples of the validation split, or of random samples.")
    ] = 32,
    batch_size: Annotated[int, Option("Samples per batch.")] = 16,
    mixers: Annotated[
        str | None, Option("Mixers of an untrained model, separated by commas.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        Option("Setting of an untrained model; repeatable.", ("--set",), "KEY=VALUE"),
    ] = None,
    tokens: Annotated[int, Option("Tokens of random sequences.")] = 64,
    seed: Seed = 0,
    data_dir: DataDir | None = None,
    data: Annotated[
        Path | None,
        Option("File or folder of user data, if it has moved since the run.", metavar="PATH"),
    ] = None,
    threads: Threads | None = None,
    json: Json = False,
) -> None:
    """Measure and draw spectra, ranks, permutations, memberships, coding rates or attention."""
    from rifflemix.cli.options import parse_threads
    from rifflemix.lab.analysis import View, analyze_into, get_analysis, usable_analyses
    from rifflemix.lab.runs.environment import using_threads

    kinds = tuple(usable_analyses()) if kind == "all" else (get_analysis(kind).name,)
    if setting and Path(target).is_dir():
        raise bad_argument("--set", "no setting for the folder of a run", " ".join(setting))
    console = progress_console()
    with DataProgress(console) as progress, using_threads(parse_threads(threads)):
        view = View(
            samples=samples,
            batch_size=batch_size,
            seed=seed,
            mixers=() if mixers is None else parse_names(mixers, "--mixers"),
            settings=parse_model_settings(setting, target),
            tokens=tokens,
            data_dir=data_dir,
            data=data,
            progress=progress,
        )

        def tick(kind: str, text: str, done: int, total: int) -> None:
            progress(f"{kind}: {text}", done, total)

        written, left_out = analyze_into(out, kinds, target, view, tick=tick)
    _tell(out, kinds, written, left_out, as_json=json)


def _tell(
    out: Path,
    kinds: tuple[str, ...],
    written: list[Path],
    left_out: dict[str, str],
    *,
    as_json: bool,
) -> None:
    from rifflemix.lab.analysis.runner import read_finding

    there = [kind for kind in kinds if (out / f"{kind}.json").is_file()]
    found = {kind: read_finding(out / f"{kind}.json") for kind in there}
    if as_json:
        print_json({"out": str(out), "findings": found, "left_out": left_out})
        return
    for kind, finding in found.items():
        show(f"{kind}: {finding['title']} ({finding['source']})")
        for sentence in finding["seen"]:
            show(f"  {sentence}")
    for kind, why in left_out.items():
        show(f"{kind}: skipped: {why}")
    names = ", ".join(path.name for path in written)
    show(f"Written to {out}: {names}" if written else f"All files exist already in {out}")
