"""Write the pictures and the tables of docs/pathfinder.md; no number there is typed.

After a change of the generator, or a run of benchmarks/pathfinder_cnn.py:

    python docs/write_pathfinder.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rifflemix.lab.tasks.pathfinder.pathfinder import (
    CURRICULUM,
    PRESETS,
    PathfinderMaker,
    scenes_of,
)
from rifflemix.text import table_lines

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "pathfinder.md"
RESULTS = FOLDER.parent / "benchmarks" / "results"
CNN_FORMAT = "rifflemix.pathfinder-cnn/2"
SIZES = (32, 64, 128, 256)
GRAY = 90


def pictures_of(size: int, preset: str, columns: int) -> list[NDArray[np.uint8]]:
    """A row of images with the discs joined, and one with them apart."""
    images, labels = PathfinderMaker(scenes_of(size, {"preset": preset}), 0, 0)(0, 8 * columns)
    return [
        np.concatenate([np.pad(image, 1, constant_values=GRAY) for image in chosen], axis=1)
        for chosen in (images[labels == label][:columns] for label in (1, 0))
    ]


def write_sheet(path: Path, size: int, presets: list[str], columns: int, scale: int) -> None:
    """A PNG file of rows of images, for each preset joined above apart."""
    rows = [row for preset in presets for row in pictures_of(size, preset, columns)]
    sheet = np.concatenate(rows).repeat(scale, axis=0).repeat(scale, axis=1)
    Image.fromarray(sheet).save(path, optimize=True)


def settings_table() -> str:
    """What the images of each size show, for the three presets."""
    head = "| | " + " | ".join(f"{size}x{size}" for size in SIZES) + " |"
    lines = [head, "| --- |" + " --- |" * len(SIZES)]
    scenes = {preset: [scenes_of(size, {"preset": preset}) for size in SIZES] for preset in PRESETS}
    for preset, row in scenes.items():
        cells = [
            f"2 x {s.contour_length}, {s.num_distractors} x {s.distractor_length}" for s, *_ in row
        ]
        lines.append(f"| dashes, `{preset}` | " + " | ".join(cells) + " |")
    for name in (
        "paddle_length",
        "paddle_thickness",
        "gap",
        "clearance",
        "continuity",
        "contrast",
        "marker_radius",
        "disc_distance",
    ):
        cells = [
            " or ".join(dict.fromkeys(f"{getattr(scene, name):g}" for scene in each))
            for each in scenes["curv_contour_length_14"]
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def curriculum_table() -> str:
    """The steps to Path-X."""
    lines = [
        "| step | task | `contour_length` | `num_distractors` | `gap` | `contrast` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for number, (task, options) in enumerate(CURRICULUM.values(), start=1):
        size = 128 if task == "pathx" else int(task.removeprefix("pathfinder"))
        scenes = scenes_of(size, {"preset": "curv_contour_length_14", **options})
        values = [
            " or ".join(dict.fromkeys(f"{getattr(scene, name):g}" for scene in scenes))
            for name in ("contour_length", "num_distractors", "gap", "contrast")
        ]
        lines.append(f"| {number} | `{task}` | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def cnn_table() -> str:
    """What the convolutional network reached."""
    path = newest()
    result = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "| set | test accuracy | test images | processor minutes | images seen |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{row['set']}` | {100 * row['accuracy']:.1f} % | {row['test_images']:,} | "
        f"{row['cpu_seconds'] / 60:.1f} | {row['images_seen']:,} |"
        for row in result["results"]
    ]
    return (
        "\n".join(lines)
        + f"\n\n{result['parameters']:,} parameters, one core of {_cpu(result)}; from "
        + f"`benchmarks/results/{path.name}`.\n"
    )


def newest() -> Path:
    """The newest result of the network."""
    found = [
        (content["environment"]["time"], path)
        for path in RESULTS.glob("pathfinder-cnn-*.json")
        if (content := json.loads(path.read_text(encoding="utf-8")))["format"] == CNN_FORMAT
    ]
    return max(found)[1]


def _cpu(result: dict[str, dict[str, dict[str, str]]]) -> str:
    return result["environment"]["hardware"]["cpu"]


def attention_table() -> str:
    """What small models of 64 patches reach, with attention and with no mixing at all."""
    found = [
        (path, json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(RESULTS.glob("pathfinder-patches-*.json"))
    ]
    headers = ("dashes of a contour", "bends", "distractors",
               *(mixer["name"] for mixer in found[0][1]["mixers"]))  # fmt: skip
    rows = [
        (
            f"{options['contour_length']} of {options['paddle_length']:g} pixels",
            f"to {60 / options['continuity']:g} degrees",
            str(options["num_distractors"]),
            *(f"{_score(mixer, result)} %" for mixer in result["mixers"]),
        )
        for _, result in found
        for options in [result["task"]["options"]]
    ]
    first = found[0][1]
    train, tuned = first["config"]["train"], first["config"]["tuned"]["lr"]
    trials = [trial for _, result in found for trial in result["tuning"]["trials"]]
    minutes = max(trial["wall_seconds"] for trial in trials) / 60
    lines = [
        *table_lines(headers, rows),
        "",
        f"Test accuracy and the standard error of {first['task']['sizes']['test']:,} images, of "
        f"the learning rate that validation chose among {len(tuned)}: one seed, "
        f"{train['max_steps']:,} steps of {train['batch_size']}, at most {minutes:.1f} minutes of "
        f"a core of {_cpu(first)} beside other work. From "
        + ", ".join(f"`benchmarks/results/{path.name}`" for path, _ in found)
        + ":",
        "",
        "```",
        *(result["command"] for _, result in found),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _score(mixer: dict[str, Any], result: dict[str, Any]) -> str:
    """Test accuracy in percent and the standard error of the finite split."""
    share = mixer["test"]["mean"]
    error = (share * (1 - share) / result["task"]["sizes"]["test"]) ** 0.5
    return f"{100 * share:.1f} ± {100 * error:.1f}"


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "curriculum": curriculum_table,
    "cnn": cnn_table,
    "attention": attention_table,
}


def filled(page: str) -> str:
    """The page with its tables written anew."""
    for name, table in TABLES.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", flags=re.DOTALL)
        page = block.sub(lambda match, table=table: f"{match[1]}\n{table()}\n{match[2]}", page)
    return page


if __name__ == "__main__":
    write_sheet(
        FOLDER / "pathfinder-32.png",
        32,
        ["curv_contour_length_9", "curv_contour_length_14"],
        columns=9,
        scale=2,
    )
    write_sheet(FOLDER / "pathfinder-64.png", 64, ["curv_contour_length_9"], columns=7, scale=1)
    write_sheet(FOLDER / "pathfinder-128.png", 128, ["curv_contour_length_14"], 5, scale=1)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
