"""Write docs/results.md, its pictures and its tables; no number there is typed.

The page takes what is there: benchmarks/results, docs/claims. After any of them changed:

    python docs/write_results.py
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import write_claims
import write_mixers
from claims_base import VERDICTS
from results_beyond import grouped, sharding, text
from results_common import RESULTS, Answer, by_time, listed, pages, read, scores, task_title
from results_every import every_mixer
from results_forms import layer_forms
from results_host import one_host
from results_mlps import butterfly_mlps
from results_peers import packages
from results_pictures import Curve, Mark, Row, curves, dots, verdicts
from results_plateau import plateau
from results_printed import printed
from results_suite import SUITE, small_tasks, suite_tasks, which_mixer

from rifflemix.lab.bench import decode
from rifflemix.lab.comparison.differences import differences_from_softmax
from rifflemix.lab.comparison.table import comparison_rows
from rifflemix.lab.report.units import metric_value
from rifflemix.mixers import HEADLINE

FOLDER = Path(__file__).resolve().parent
PAGE, FILES = FOLDER / "results.md", FOLDER / "results"
INTRODUCTION = """# Results

Each section has a question, a short answer, a picture and its numbers as CSV, with the result files
and the commands that wrote them folded below. `python docs/write_results.py` writes this page; no
number on it is typed. [Performance](performance.md) has times and memory in detail. Every file
names its machine: two CPU cores where the page does not say otherwise.
"""


def answers() -> list[Answer]:
    """All of the page, in its order."""
    return [which_mixer(), accuracy(), every_mixer(), small_tasks(), text(), grouped(),
            speed(), memory(), packages(), layer_forms(), butterfly_mlps(), decoding(), sharding(),
            distillation(), printed(), one_host(), plateau(), claims(), estimates()]  # fmt: skip


def accuracy() -> Answer:
    """Our mixers against softmax attention, where several seeds were compared."""
    others = {path.stem: path for path in comparisons()}
    sources = {f"{SUITE}/{name}": path for name, path in suite_tasks().items()} | others
    drawn: list[Row] = []
    table: list[dict[str, Any]] = []
    verdict: Counter[str] = Counter()
    for name, path in sources.items():
        results = read(path)
        rows = comparison_rows(results)
        found = {of.row.name: of for of in differences_from_softmax(rows)}
        shown = {name: of for name, of in found.items() if name in HEADLINE}
        if shown:
            drawn.append(Row(f"{task_title(results)}, {len(results['seeds'])} seeds"))
        for row in (row for row in rows if row.name in HEADLINE):
            line = scores(path, row) | {"result": name}
            if row.name in shown:
                of = shown[row.name].decision
                low, mean, high = (
                    metric_value(row.metric, value)
                    for value in (of.difference.low, of.difference.mean, of.difference.high)
                )
                word = "less" if of.is_loss else "more" if of.is_shown else "not told apart"
                verdict[word] += 1
                kind = "main" if of.is_shown else "other"
                words = f"{mean:+.2f} ({low:+.1f} to {high:+.1f})"
                drawn.append(Row(row.title, (Mark(mean, kind, low, high),), words))
                line |= {"difference": mean, "low": low, "high": high, "p": of.probability}
            table.append(line)
    says = (
        f"Of {verdict.total()} comparisons of our mixers with softmax attention under the same "
        f"budget, {verdict['more']} shows a more accurate mixer, {verdict['less']} a less accurate "
        f"one, and {verdict['not told apart']} no significant difference. The picture shows points "
        "of test accuracy above softmax attention, with 95 % intervals paired over seeds. A filled "
        "circle is a difference that remains significant after Holm's correction within its "
        "comparison, by the rule that also decides bold and ranks. Comparisons with one seed are "
        "in the table only."
    )
    picture = dots("Test accuracy minus softmax attention's, points", drawn, rule=0.0)
    made = [RESULTS / "suites" / SUITE / "results.json", *others.values()]
    return Answer("Is it as accurate as softmax attention?", says, "accuracy", picture, table,
                  list(sources.values()), [command_of(read(path)) for path in made])  # fmt: skip


def command_of(results: Mapping[str, Any]) -> str:
    """Return the command of a comparison, with its mixers if they are not the default."""
    command: str = results["command"]
    is_unnamed = command.startswith("rifflemix compare --task") and "--mixers" not in command
    if is_unnamed and len(results["config"]["mixers"]) > len(HEADLINE):
        return command.replace(" --out", " --mixers all --out")
    return command


def speed() -> Answer:
    """Time over the number of tokens, which benchmarks/writepages.py draws."""
    path, result = write_mixers.newest_scaling()
    table = [
        {
            "mixer": name,
            "tokens": tokens,
            **{f"{kind}_ms": 1e3 * passes[kind]["p50"] for kind in passes},
            **{f"{kind}_x_softmax": passes[kind]["ratios"].get("softmax", "") for kind in passes},
        }
        for name in HEADLINE
        for tokens, passes in write_mixers.passes_by_tokens(result, name).items()
    ]
    words = [
        f"{name} from N = {write_mixers.crossover(result, name, 'forward_backward')}"
        for name in HEADLINE
        if name != "softmax"
    ]
    says = (
        f"A layer of {result['settings']['dim']} channels trains faster than softmax attention: "
        f"{', '.join(words)}. Milliseconds, forward and backward, both scales logarithmic."
    )
    return Answer("From which length on is it faster?", says, "speed", "performance.png", table,
                  [path], [result["command"]])  # fmt: skip


def memory() -> Answer:
    """What a layer keeps in training, in multiples of softmax attention."""
    path, result = write_mixers.newest_scaling()
    base = write_mixers.passes_by_tokens(result, "softmax")
    drawn, table = [], []
    for name in HEADLINE:
        points = []
        for tokens, passes in write_mixers.passes_by_tokens(result, name).items():
            held = passes["forward_backward"]["peak_memory_bytes"]
            line = {"mixer": name, "tokens": tokens, "training_memory_bytes": held}
            if tokens in base:
                ratio = held / base[tokens]["forward_backward"]["peak_memory_bytes"]
                points.append((float(tokens), ratio))
                line["x_softmax"] = ratio
            table.append(line)
        drawn.append(Curve(name, tuple(points)))
    last = {curve.name: curve.points[-1][1] for curve in drawn if curve.name != "softmax"}
    less = [name for name, ratio in last.items() if ratio < 1]
    more = [name for name, ratio in last.items() if ratio >= 1]
    says = (
        f"At {max(base):,} tokens {listed(less)} hold less than softmax attention, "
        f"{listed(more) or 'none'} more. torch's fused attention keeps no N x N map, so its memory "
        "is linear in N too, unless it drops or returns weights. Peak of a forward and backward "
        "pass, relative to softmax attention."
    )
    picture = curves("Training memory of a layer over N, x softmax attention's", drawn, rule=1.0)
    return Answer("How much memory does training hold?", says, "memory", picture, table, [path],
                  [result["command"]])  # fmt: skip


def decoding() -> Answer:
    """A token after a long context, in multiples of softmax attention with its cache in place."""
    path = by_time("decode-*.json")[-1]
    result = read(path)
    rows = [row for row in result["rows"] if row["passes"]]
    table = [
        {
            "layer": row["name"],
            "context": row["shape"]["tokens"],
            "tokens_per_second": row["extra"]["tokens_per_second"],
            "ms": 1e3 * row["passes"]["step"]["p50"],
            "x_softmax_in_place": row["passes"]["step"]["ratios"].get(decode.IN_PLACE, ""),
            "state_bytes": row["extra"]["state_bytes"],
        }
        for row in rows
    ]
    rates = {
        name: tuple(
            (line["context"], line["tokens_per_second"]) for line in table if line["layer"] == name
        )
        for name in (decode.IN_PLACE, "csp", "sliceformer", "tssa", "linear", "local")
    }
    softmax = rates[decode.IN_PLACE]
    (near, _), (far, slowest) = softmax[0], softmax[-1]
    words = [
        f"{name} {points[-1][1] / slowest:,.0f}"
        for name, points in rates.items()
        if name != decode.IN_PLACE
    ]
    least = min(points[0][1] / softmax[0][1] for points in rates.values())
    says = (
        f"Speed of a layer of {result['settings']['dim']} channels after {far:,} tokens, relative "
        f"to softmax attention whose cache is written in place: {listed(words)}. After {near:,} "
        f"tokens the slowest of them is {least:.2g} times as fast; Python's overhead dominates "
        "there. Softmax attention's cache grows with the context, their states do not. "
        "Tokens per second of one sequence, both scales logarithmic."
    )
    drawn = [Curve(name.split(",")[0], points) for name, points in rates.items()]
    picture = curves("Tokens per second of one layer over the context", drawn, decades=True)
    return Answer("How fast does it generate after a long context?", says, "decoding", picture,
                  table, [path], [result["command"]])  # fmt: skip


def distillation() -> Answer:
    """A trained model whose attention is swapped, before and after distillation."""
    path = by_time("distil-*.json")[-1]
    result = read(path)
    half, whole = result["more_steps"], 2 * result["more_steps"]
    stages = {
        "original": "before the swap",
        "swapped": "after it",
        "distilled": f"{half} steps of distillation",
        "distilled, fine-tuned": f"then {half} of fine-tuning",
        "fine-tuned": f"or {whole} of fine-tuning alone",
    }
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault(row["mixer"], []).append(row)
    drawn, means = [], {}
    for mixer, rows in groups.items():
        drawn.append(Row(f"softmax to {mixer}, {len(rows)} seeds"))
        for stage, title in stages.items():
            values = [row[stage] for row in rows]
            means[mixer, stage] = mean = math.fsum(values) / len(values)
            kind = "main" if stage == "original" else "other"
            words = f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"
            drawn.append(Row(title, (Mark(mean, kind, min(values), max(values)),), words))
    said = [
        f"{mixer} {means[mixer, 'distilled, fine-tuned']:.1f} with distillation and "
        f"{means[mixer, 'fine-tuned']:.1f} without"
        for mixer in groups
    ]
    says = (
        f"{whole} steps of training after the swap give, in percent of test accuracy on the "
        f"digits: {'; '.join(said)}. Bars go from the lowest to the highest seed."
    )
    return Answer("Can a trained model change its mixer?", says, "distillation",
                  dots("Test accuracy, %", drawn), list(result["rows"]), [path],
                  ["python benchmarks/distil.py --out benchmarks/results"])  # fmt: skip


def claims() -> Answer:
    """Show the verdicts of docs/claims.md."""
    judged = write_claims.by_paper()
    papers: dict[str, list[tuple[int, str]]] = {}
    for number, claim, judgement in judged:
        papers.setdefault(claim.paper, []).append((number, judgement.verdict))
    says = (
        f"Of {len(judged)} claims "
        + write_claims.summary([judgement.verdict for *_, judgement in judged])
        + ", on models trained here for minutes. The number of a square is that of "
        "[the claim](claims.md)."
    )
    table = [
        {"claim": number, "paper": claim.paper, "says": claim.text, "verdict": judgement.verdict}
        for number, claim, judgement in judged
    ]
    return Answer("Are the papers' claims right?", says, "claims",
                  verdicts("Claims of five papers", papers, VERDICTS), table,
                  [FOLDER / "claims.md"], ["python docs/write_claims.py"])  # fmt: skip


def estimates() -> Answer:
    """What `list recipes --cost` says of a step and of a training, beside those that were made."""
    path = by_time("step-estimates-*.json")[-1]
    result = read(path)
    table: list[dict[str, Any]] = []
    drawn: list[Row] = []
    near = []
    for title, of, rows in (
        ("A step", "step", result["rows"]),
        ("All of training", "training", result["runs"]),
    ):
        near.append(f"{sum(1 / 1.5 <= row['ratio'] <= 1.5 for row in rows)} of {len(rows)}")
        table += [{"of": of, "seed": "", **row} for row in rows]
        drawn += [Row(title), *(_estimated(row) for row in rows)]
    says = (
        f"The estimate of `rifflemix list recipes --cost` is within a factor of 1.5 of the "
        f"measured time of a step in {near[0]} rows, and of the whole training in {near[1]} "
        "full runs on a machine as fast as that of the estimate. One thread, beside other work; "
        "estimated over measured seconds."
    )
    return Answer("Does the estimated cost of a row hold?", says, "estimates",
                  dots("Estimated over measured", drawn, rule=1.0), table, [path],
                  ["python benchmarks/step_estimates.py"])  # fmt: skip


def _estimated(row: Mapping[str, Any]) -> Row:
    name = row["name"].partition("/")[2] + (f", seed {row['seed']}" if row.get("seed") else "")
    return Row(name, (Mark(row["ratio"]),), f"{row['ratio']:.2f}")


@functools.cache
def comparisons() -> list[Path]:
    """Results of `rifflemix compare`, the demo's newest among them, the oldest first."""
    kept: list[Path] = pages.by_time(
        [*RESULTS.glob("compare-*.json"), *by_time("demo/*.json")[-1:]]
    )
    return kept


def files() -> dict[Path, str]:
    """Every file that this script writes."""
    found = answers()
    texts = {PAGE: INTRODUCTION + "".join(map(_section, found))}
    for answer in found:
        texts[FILES / f"{answer.name}.csv"] = _csv(answer.table)
        if answer.picture.startswith("<svg"):
            texts[FILES / f"{answer.name}.svg"] = answer.picture
    return texts


def _section(answer: Answer) -> str:
    drawn = answer.picture.startswith("<svg")
    picture = f"results/{answer.name}.svg" if drawn else answer.picture
    sources = "\n".join(f"- [{_label(path)}]({_link(path)})" for path in answer.sources)
    commands = "\n".join(dict.fromkeys(answer.commands))
    shown = f"{answer.shown}\n\n" if answer.shown else ""
    return (
        f"\n## {answer.question}\n\n{answer.says}\n\n![{answer.question}]({picture})\n\n{shown}"
        f"Table: [{answer.name}.csv](results/{answer.name}.csv).\n\n"
        '<details markdown="1">\n<summary>Result files, and the commands that wrote them'
        f"</summary>\n\n{sources}\n\n```\n{commands}\n```\n\n</details>\n"
    )


def _label(path: Path) -> str:
    """The file's name; with its folder, where the name alone says nothing."""
    return f"{path.parent.name}/{path.name}" if path.name == "results.json" else path.name


def _link(path: Path) -> str:
    return os.path.relpath(path, FOLDER).replace(os.sep, "/")


def _csv(lines: Iterable[Mapping[str, Any]]) -> str:
    """Numbers in six digits: nothing here was measured better."""
    text: str = pages.csv_text(
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()}
        for line in lines
    )
    return text


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
