"""Commands that use trained models: rifflemix predict, generate and export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from rifflemix.cli.commands import parse_path
from rifflemix.cli.output import plain_table, print_json, show
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.lab.runs.options import Json, Mixer, Option, RunSeed

PREDICT_EPILOG = """Examples:

  rifflemix predict runs/reviews --data new.csv --out labels.csv

  rifflemix predict runs/three --mixer csp --data photos/ --out labels.csv

RUN is the folder of a finished train, compare, sweep or reproduce, or of one run in it. If there
are several runs, --mixer and --seed choose one. The default is the best run by validation.
"""
_MOST_CLASSES = 20


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", parser=parse_path)],
    data: Annotated[
        Path,
        Option(
            "Table (.csv, .tsv, .jsonl, .parquet, FASTA), arrays (.npz), text (.txt), or images.",
            metavar="PATH",
        ),
    ],
    out: Annotated[Path, Option("Table of the predictions, .csv.", metavar="PATH")],
    column: Annotated[
        str | None, Option("Column or array of the inputs; as in training if unset.")
    ] = None,
    mixer: Mixer | None = None,
    seed: RunSeed | None = None,
    json: Json = False,
) -> None:
    """Predict labels of new inputs with a trained model. The training data is not needed."""
    from rifflemix.lab.trained import load_run
    from rifflemix.lab.trained.data import check_not_input, read_inputs, write_predictions

    if out.suffix != ".csv":
        raise bad_argument("--out", "a file .csv", str(out))
    check_not_input(out, data)
    trained = load_run(run, mixer=mixer, seed=seed)
    found = write_predictions(out, trained, read_inputs(trained.inputs, data, column))
    counts = Counter(map(str, found)) if trained.task.output == "classes" else {}
    if json:
        print_json(
            {
                "run": str(trained.folder),
                "task": trained.task.name,
                "predictions": len(found),
                "classes": dict(counts),
                "out": str(out),
            }
        )
        return
    common = sorted(counts.items(), key=lambda item: -item[1])[:_MOST_CLASSES]
    if common:
        show(plain_table(("prediction", "inputs"), [(name, f"{n:,}") for name, n in common]))
    show(f"{len(found):,} predictions of {trained.folder} written to {out}")


GENERATE_EPILOG = """Examples:

  rifflemix generate runs/ptb --prompt "the company said" --max-new-tokens 40

  rifflemix generate runs/ptb --prompts questions.txt --temperature 0.8 --top-k 50 --out out.txt

  rifflemix generate runs/sort --prompt "3 1 2"

  rifflemix generate runs/cifar --images 4 --out samples
"""


def generate(
    folder: Annotated[Path, typer.Argument(help="Folder of a training, or of one run in it.")],
    prompt: Annotated[
        list[str] | None,
        Option("Text, or numbers with spaces for models of numbers; repeatable.", metavar="TEXT"),
    ] = None,
    prompts: Annotated[
        Path | None, Option("File with one prompt per line.", metavar="FILE")
    ] = None,
    images: Annotated[
        int | None, Option("Number of images to draw, for models of image bytes.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option("Tokens to add; up to the maximum length if unset.")
    ] = None,
    temperature: Annotated[
        float | None, Option("Divisor of the logits; 0 chooses the most likely token.")
    ] = None,
    top_k: Annotated[int | None, Option("Sample from the k most likely tokens only.")] = None,
    seed: Annotated[int, Option("Seed of the samples.")] = 0,
    mixer: Annotated[str | None, Option("Mixer of a comparison; the best if unset.")] = None,
    run_seed: Annotated[int | None, Option("Seed of the run; the best if unset.")] = None,
    out: Annotated[
        Path | None, Option("Text file, or folder of PNG files, to write.", metavar="PATH")
    ] = None,
    json: Json = False,
) -> None:
    """Continue prompts with a trained model."""
    import numpy as np

    from rifflemix.files import write_bytes
    from rifflemix.lab.trained import load_run
    from rifflemix.lab.trained.data import check_not_input, parse_lines

    if out is not None and prompts is not None:
        check_not_input(out, prompts)
    given = _prompts(prompt, prompts, images)
    if images is not None and out is None:
        raise bad_argument("--out", "a folder for the images", "none")
    if images is not None and max_new_tokens is not None:
        raise bad_argument("--max-new-tokens", "none next to --images", max_new_tokens)
    run = load_run(folder, mixer=mixer, seed=run_seed)
    if images is None:
        given = parse_lines(run.inputs, given)
    elif getattr(run.inputs, "image_shape", None) is None:
        raise bad_argument("--images", "a model of image bytes", f"task {run.task.name}")
    found = run.generate(given, max_new_tokens, temperature=temperature, top_k=top_k, seed=seed)
    if images is not None and out is not None:
        _write_images(out, found)
        show(f"Written to {out}: {len(found)} images")
        return
    plain = [entry if isinstance(entry, str) else np.ravel(entry).tolist() for entry in found]
    lines = [entry if isinstance(entry, str) else " ".join(map(str, entry)) for entry in plain]
    if out is not None:
        write_bytes(out, "".join(f"{line}\n" for line in lines).encode())
    if json:
        print_json(plain)
    elif out is None:
        for line in lines:
            show(line)
    else:
        show(f"Written to {out}: {len(lines)} texts")


def _prompts(texts: list[str] | None, file: Path | None, images: int | None) -> list[Any]:
    """Read the prompts from the only option that is set."""
    from rifflemix.files import reported

    if sum(option is not None for option in (texts or None, file, images)) != 1:
        raise InputError("expected one of --prompt, --prompts and --images")
    if images is not None:
        if images < 1:
            raise bad_argument("--images", "at least 1", images)
        return [[]] * images
    if file is None:
        return list(texts or ())
    with reported("read", file):
        content = file.read_bytes()
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise bad_argument("--prompts", "a file of UTF-8 text", f"{file}: {error}") from error


def _write_images(out: Path, images: list[Any]) -> None:
    """Write PNG files out/000.png, out/001.png, ..."""
    from io import BytesIO

    from rifflemix.files import make_folder, write_bytes

    require_packages("images", "compare", "matplotlib")
    from matplotlib.image import imsave

    make_folder(out)
    for number, image in enumerate(images):
        content = BytesIO()
        imsave(content, image, format="png")
        write_bytes(out / f"{number:03}.png", content.getvalue())


EXPORT_EPILOG = """Examples:

  rifflemix export runs/reviews --out reviews.onnx

  rifflemix export runs/three --mixer csp --seed 1 --out csp.onnx

The file accepts any batch size, and any length that the model supports. A language model that
streams also becomes a graph of one decoding step, in NAME.step.onnx. If its mixer has no ONNX form
for sequences of any length, the command writes only that step.
"""


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", parser=parse_path)],
    out: Annotated[Path, Option("ONNX file to write.", metavar="PATH")],
    mixer: Mixer | None = None,
    seed: RunSeed | None = None,
    json: Json = False,
) -> None:
    """Export a trained model to ONNX, with the names of its classes."""
    from rifflemix.lab.trained import load_run
    from rifflemix.lab.trained.export import sequence_limit

    trained = load_run(run, mixer=mixer, seed=seed)
    written = [str(path) for path in trained.export_onnx(out)]
    if json:
        print_json({"run": str(trained.folder), "task": trained.task.name, "files": written})
        return
    if limit := sequence_limit(trained.model, trained.task):
        show(f"only one decoding step is exported: {limit}")
    show(f"{trained.folder} written to {', '.join(written)}")
