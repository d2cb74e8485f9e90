"""The numbers that recipes print beside ours are those of the papers' own texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rifflemix.recipes import get_recipe, list_recipes


def lra_rows(text: str) -> list[tuple[str, list[float]]]:
    """Lines with a name and at least five numbers: (line, numbers from the first to the last)."""
    rows = []
    for line in text.splitlines():
        plain = re.sub(r"</?u>|\\[a-z]+\{[^}]*\}|\[\d+\]|\([^)]*\)|\$[^$]*\$", " ", line)
        numbers = [float(n) for n in re.findall(r"(?<![\w.])\d+\.\d\d(?![\w.])", plain)]
        if len(numbers) >= 5:
            rows.append((line, numbers))
    return rows


FIVE = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder")


@pytest.mark.parametrize(
    ("paper", "table"),
    [
        ("csp", "Table 4"),
        ("sliceformer", "Table II"),
        ("tost", "Table 3"),
        ("dimension_mixer", "Table 5"),
    ],
)
def test_lra_rows_stand_in_the_paper(paper: str, table: str, papers: Path) -> None:
    rows = [numbers for _, numbers in lra_rows((papers / f"{paper}.txt").read_text())]
    recipes = [get_recipe(n) for n in list_recipes() if n.startswith(f"{paper}/")]
    printed: dict[str, dict[str, float | None]] = {}
    for recipe in recipes:
        if recipe.table == table:
            printed.setdefault(recipe.row, {})[recipe.column] = recipe.printed
    assert printed
    for row, values in printed.items():
        wanted = [values[column] for column in FIVE]
        found = [numbers for numbers in rows if numbers[:5] == wanted]
        assert found, f"{row}: {wanted}"
        assert values.get("Path-X", wanted[0]) in found[0]


Cells = tuple[str, str, dict[int, str]]
"""A paper, the start of one of its lines (a pattern), and the recipe of some of its numbers."""


def cells(paper: str, start: str, *names: str | None) -> Cells:
    """The first numbers of a line, as the printed numbers of recipes; None: of no recipe."""
    found = {place: f"{paper}/{name}" for place, name in enumerate(names) if name is not None}
    return paper, start, found


SENTIMENTS = ("imdb-word", "imdb-char", "sst-word", "sst-char")
VIT_SIZES = ("cifar10-p4-l8", "cifar10-p4-l4", "cifar10-p2-l4", "cifar10-p1-l4")
ALL_SIZES = (*VIT_SIZES, "cifar100-p4-l4", "cifar100-p2-l4")
SINKHORN_ROWS = {
    r"\(Vaswani et al., 2017\)": "transformer",
    r"Sinkhorn \(8\)": "b8",
    r"Sinkhorn \(16\)": "b16",
    r"Sinkhorn \(32\)": "b32",
    r"SORTCUT \(2x8\)": "sortcut-b8",
    r"SORTCUT \(2x16\)": "sortcut-b16",
    r"SORTCUT \(2x32\)": "sortcut-b32",
}

LINES: list[Cells] = [
    # CSP, Table 3: counts, Top-1 and Top-5 of three data sets.
    *(
        cells("csp", start, None, f"table3-cifar10-{row}", None, None, f"table3-cifar100-{row}")
        for start, row in (
            (r"ViT\tMHA\t(?=9)", "vit"),
            (r"\tCircular Shifting\t(?=6)", "shift"),
            (r"\tGroup Sorting\t(?=6)", "sort"),
            (r"\tCSP \(Proposed\)\t(?=6)", "csp"),
        )
    ),
    # Sliceformer, Table IV: counts and accuracies of five data sets.
    *(
        cells(
            "sliceformer", start, None, None, None, f"table4-mnist-{row}", None,
            f"table4-cifar10-{row}", None, f"table4-cifar100-{row}",
        )
        for start, row in (
            (r"ViT \|(?= 1)", "vit"),
            (r"Sliceformer \|(?= 1\.11 \| 79\.71)", "max_exchange"),
            (r"Sliceformer \|(?= 1\.11 \| 79\.87)", "ascending"),
        )
    ),
    # Tables V and VI: counts, then what is measured.
    *(
        cells("sliceformer", start, None, f"table5-imdb-{row}")
        for start, row in (
            (r"Transformer \|(?= 8\.84)", "transformer"),
            (r"Sliceformer \|(?= 8\.05 \| 84\.9)", "max_exchange"),
            (r"Sliceformer \|(?= 8\.05 \| 84\.5)", "ascending"),
        )
    ),
    *(
        cells("sliceformer", start, None, f"table6-pcqm4m-{row}")
        for start, row in (
            (r"Graphormer \|", "graphormer"),
            (r"Sliceformer \|(?= 32\.91 \| 0\.130)", "max_exchange"),
            (r"Sliceformer \|(?= 32\.91 \| 0\.134)", "ascending"),
        )
    ),
    # ToST, Table 8.
    *(
        cells("tost", rf"{used} \| {block} \|", f"table8-cifar10-{name}-{block.lower()}")
        for used, name in (("Yes", "normalized"), ("No", "plain"))
        for block in ("MLP", "ISTA")
    ),
    # Dimension Mixer, Table 3: counts, MACs, accuracy; the expansions stand in the middle rows.
    *(
        cells("dimension_mixer", start, None, None, f"table3-{name}")
        for start, name in (
            (r"Dense\t\t(?=351)", "dense-e1"),
            (r"Butterfly-Linear\t1\t", "butterfly_linear-e1"),
            (r"Butterfly-MLP\t\t(?=143)", "butterfly_mlp-e1"),
            (r"Dense\t\t(?=615)", "dense-e2"),
            (r"Butterfly-Linear\t2\t", "butterfly_linear-e2"),
            (r"Butterfly-MLP\t\t(?=197)", "butterfly_mlp-e2"),
        )
    ),
    # Table 8 holds both rows of Table 4, and the random one.
    *(
        cells(
            "dimension_mixer",
            rf"{start}\t(?=8\d)",
            *(f"table{t}-{size}-{kind}" for size in ALL_SIZES),
        )
        for start, t, kind in (
            ("Butterfly", 4, "butterfly"), ("Rand Butt.", 8, "random"), ("Dense", 4, "dense")
        )
    ),
    # Table 6: the last number of a line.
    *(
        cells("dimension_mixer", start, *[None] * before, f"table6-{name}")
        for start, before, name in (
            (r"32\t14\t", 0, "32"),
            (r"64\t9\t", 0, "64"),
            (r"128\t14\t1\t5\t1\t", 1, "128-d5-g1"),
            (r"128\t14\t1\t5\t2\t", 1, "128-d5-g2"),
            (r"128\t14\t1\t14\t", 1, "128-d14"),
            (r"128\t14\t1\t20\t", 1, "128-d20"),
            (r"128\t14\t[^\d]", 0, "128"),
        )
    ),
    *(
        cells(
            "dimension_mixer", start,
            f"table7-cifar10-{name}", None, None, f"table7-cifar100-{name}",
        )
        for start, name in (
            (r"MLP Mixer \(c1\)\t7\t81, 144\t", "c1-l7"),
            (r"Patch Only\t\t75, 147\t(?=84)", "patch_only-l7"),
            (r"MLP Mixer \(c2\)\t\t64, 153\t(?=84.16)", "c2-l7"),
            (r"MLP Mixer \(c1\)\t10\t81, 144\t", "c1-l10"),
            (r"Patch Only\t\t75, 147\t(?=85)", "patch_only-l10"),
            (r"MLP Mixer \(c2\)\t\t64, 153\t(?=84.20)", "c2-l10"),
        )
    ),
    *(
        cells(
            "dimension_mixer", start,
            f"table9-p4-l8-{name}", None, f"table9-p4-l4-{name}", None, f"table9-p2-l4-{name}",
        )
        for start, name in (
            (r"Baseline\t", "baseline"),
            (r"without W_\{out\}\t", "no_wout"),
            (r"Token-Parallel 2\t", "tp2"),
            (r"Token-Parallel 1\t", "tp1"),
        )
    ),
    *(
        cells("sparse_sinkhorn", rf"\| {start} +\|", f"table1-edit-{row}", f"table1-sort-{row}")
        for start, row in (
            ("Transformer", "transformer"),
            (r"Local Attention \(32\)", "local"),
            (r"Sparse Transformer \(32\)", "sparse"),
            (r"Sinkhorn Transformer \(8\)", "b8"),
            (r"Sinkhorn Transformer \(16\)", "b16"),
            (r"Sinkhorn Transformer \(32\)", "b32"),
        )
    ),
    *(
        cells(
            "sparse_sinkhorn", rf"\| {start} +\|(?=( [\d.]+ +\|){{4}})",
            *(f"table6-{data}-{row}" for data in SENTIMENTS),
        )
        for start, row in SINKHORN_ROWS.items()
    ),
    *(
        cells("sparse_sinkhorn", rf"\| {start} +\| (?=[34]\.\d{{3}})", f"table5-cifar10-{row}")
        for start, row in (
            ("Local Attention", "local"),
            (r"Transformer \(Vaswani et al., 2017\)", "transformer"),
            (r"Sparse Transformer \(256\)", "sparse"),
            (r"Sinkhorn Transformer \(256\)", "b256"),
            ("Sinkhorn Mixture", "mixture"),
        )
    ),
]  # fmt: skip


def numbers_of(text: str, start: str) -> list[float]:
    """The decimal numbers after `start` in the first line that begins with it and has any."""
    for line in text.splitlines():
        match = re.match(start, line)
        numbers = re.findall(r"(?<![\w.])\d+\.\d+", line[match.end() :]) if match else []
        if numbers:
            return [float(number) for number in numbers]
    raise AssertionError(f"no line begins with {start!r}")


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[0]}: {line[1]}")
def test_numbers_stand_in_the_papers_line(line: Cells, papers: Path) -> None:
    paper, start, recipes = line
    numbers = numbers_of((papers / f"{paper}.txt").read_text(), start)
    for place, name in recipes.items():
        name = name.replace("sparse_sinkhorn/", "sinkhorn/")
        assert get_recipe(name).printed == numbers[place], f"{name}: {numbers}"


def test_every_printed_number_is_checked() -> None:
    checked = {
        name.replace("sparse_sinkhorn/", "sinkhorn/")
        for _, _, recipes in LINES
        for name in recipes.values()
    }
    lra = {
        recipe.name
        for recipe in map(get_recipe, list_recipes())
        if recipe.column in (*FIVE, "Path-X") and recipe.table != "Table 6"
    }
    printed = {name for name in list_recipes() if get_recipe(name).printed is not None}
    assert printed - checked - lra == set()
