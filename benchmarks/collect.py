"""Store raw results of rifflemix and of the scripts here as lines of the CSV files in results/.

    python benchmarks/collect.py runs/bench/scaling-20260101-120000-machine.json
    python benchmarks/collect.py --group reproduce runs/ROW/results.json
    python benchmarks/collect.py --name demo/my-machine runs/demo/results.json

A result is stored as GROUP/STEM of its file; the stem of results.json is its folder. A result of
the same name is replaced. `python docs/build/build.py` then writes the pages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from store import FORMATS, keep

from rifflemix.errors import InputError
from rifflemix.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--group", default="", help="first part of the names, such as reproduce")
    parser.add_argument("--name", help="name of a single file")
    arguments = parser.parse_args()
    if arguments.name and len(arguments.files) > 1:
        parser.error(f"--name: expected one file, got {len(arguments.files)}. Use --group.")
    for path in arguments.files:
        stem = path.parent.name if path.name == "results.json" else path.stem
        name = arguments.name or "/".join(filter(None, [arguments.group, stem]))
        try:
            content = read_json(path, "write it again")
        except InputError as error:
            parser.error(str(error))
        form = content.get("format") if isinstance(content, dict) else None
        if form not in FORMATS:
            parser.error(f"{path}: expected a format of {', '.join(FORMATS)}, got {form!r}")
        keep(name, content)
        print(name)


if __name__ == "__main__":
    main()
