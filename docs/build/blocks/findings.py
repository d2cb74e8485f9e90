"""Sentences and the table of docs/choose.md, from the CSV files in docs/data."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path

import torch
from charts import scatter
from paths import ASSETS, DATA, DOCS, link, listed

from blocks.common import newest_benchmark, passes_by_tokens
from blocks.speed import TOKENS, factor, graph_times, scaling_times, speed_up
from rifflemix.mixers import HEADLINE, create_mixer, mixer_card
from rifflemix.text import Markdown, code, table_lines

_Line = dict[str, str]
_LISTOPS_TOKENS = 2048


def lines_of(name: str) -> list[_Line]:
    """Read a table of docs/data."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _source(page: Path, *names: str) -> str:
    links = (f"[{name}.csv]({link(page, DATA / f'{name}.csv')})" for name in names)
    return f"Data: {', '.join(links)}."


def _percent(line: _Line, key: str = "ours") -> str:
    return f"{float(line[key]):.1f} %"


def _listops() -> dict[str, _Line]:
    """Return the rows of ListOps by mixer, without rows of other implementations."""
    lines = lines_of("host")
    return {line["mixer"]: line for line in lines if line["recipe"].endswith(f"-{line['mixer']}")}


def limits(page: Path, _: list[str]) -> str:
    """Write which mixers learn ListOps of full length."""
    found = _listops()
    idle = [
        name
        for name in HEADLINE
        if name in found and set(found[name]["learned_from_step"].split()) == {"never"}
    ]
    learned = [name for name in HEADLINE if name in found and name not in idle]
    return (
        f"On ListOps with 2,000 tokens, {listed([code(name) for name in idle])} stay at the "
        f"majority class ({listed([_percent(found[name]) for name in idle])}). "
        f"{listed([f'`{name}` ({_percent(found[name])})' for name in learned])} learn the task. "
        f"{_source(page, 'host')}"
    )


def reproduced(page: Path, _: list[str]) -> str:
    """Count reproduced rows and confirmed claims."""
    rows = [line for line in lines_of("printed") if line["is_reduced"] == "False"]
    compared = [line for line in rows if line["printed"]]
    within = [
        line
        for line in compared
        if abs(float(line["ours"]) - float(line["printed"]))
        <= 2 * math.hypot(float(line["standard_error"]), float(line["standard_error_printed"]))
    ]
    verdicts = Counter(line["verdict"] for line in lines_of("verdicts"))
    done = verdicts.total() - verdicts["not run yet"]
    return (
        f"We ran {len(rows)} reported results of the papers in full, {len(compared)} of them on "
        f"the paper's data. {len(within)} of these {len(compared)} agree within two standard "
        f"errors. Of {done} claims that we tested on small models, {verdicts['holds']} hold. "
        f"{_source(page, 'printed', 'verdicts')}"
    )


def _trade() -> list[tuple[str, float, float]]:
    """Return the speed-up of training on a CPU and the accuracy on ListOps of mixers."""
    cpu, found = scaling_times("cpu", "float32"), _listops()
    return [
        (name, speed_up(cpu, name, _LISTOPS_TOKENS), float(found[name]["ours"]))
        for name in HEADLINE
        if name in found
    ]


def picture() -> str:
    """Draw accuracy against speed, at the length of ListOps."""
    return scatter(
        f"Accuracy against speed, {_LISTOPS_TOKENS:,} tokens",
        _trade(),
        "training speed of a layer on a CPU, softmax attention = 1",
        "accuracy on ListOps, %",
    )


def choose(page: Path, _: list[str]) -> str:
    """Write speed, memory, state and accuracy of the headline mixers."""
    trade = (f"{name} {rate:.1f}x and {score:.0f} %" for name, rate, score in _trade())
    alt = f"Training speed and accuracy on ListOps: {', '.join(trade)}."
    cpu, gpu = scaling_times("cpu", "float32"), scaling_times("cuda", "bfloat16")
    graph = graph_times()
    content = newest_benchmark("scaling").content
    memory = {
        name: passes_by_tokens(content, name)[TOKENS]["forward_backward"]["peak_memory_bytes"]
        for name in HEADLINE
    }
    listops = _listops()
    images = {line["mixer"]: line for line in lines_of("every-mixer")}
    rows = [
        [
            _named(page, name),
            *(
                factor(speed_up(times, name)) if name in times else ""
                for times in (cpu, gpu, graph)
            ),
            f"{memory[name] / memory['softmax']:.2f}x",
            _state(name),
            _percent(listops[name]) if name in listops else "",
            f"{100 * float(images[name]['test']):.1f} %",
        ]
        for name in HEADLINE
    ]
    headers = ["mixer", "CPU speed-up", "H200 speed-up, from Python", "H200 speed-up, CUDA graph",
               "CPU training memory", "state, causal", "ListOps-2,000", "CIFAR-10"]  # fmt: skip
    without = 100 * float(images["identity"]["test"])
    note = (
        f"Speed-up of training one layer over softmax attention at {TOKENS:,} tokens (higher is "
        f"better); memory relative to softmax attention at {TOKENS:,} tokens (lower is better); "
        "an empty cell was not measured. "
        "State: numbers per sequence that a causal layer of 64 channels and 4 heads stores after "
        f"{TOKENS:,} tokens. Test accuracies: on CIFAR-10 a model without mixing reaches "
        f"{without:.1f} %. {_source(page, 'speed', 'memory', 'host', 'every-mixer')}"
    )
    drawn = f"![{alt}]({link(page, ASSETS / 'accuracy-speed.svg')})"
    return "\n".join([drawn, "", *table_lines(headers, rows, range(1, 8)), "", note])


def _named(page: Path, name: str) -> Markdown:
    """Link the name of a mixer to its page."""
    pages = {"softmax": "baselines", "token_parallel": "butterfly"}
    target = DOCS / "mixers" / f"{pages.get(name, name)}.md"
    return Markdown(f"[{code(name)}]({link(page, target)})")


def _state(name: str) -> str:
    """Return how many numbers the state of a causal layer contains, except the position."""
    if not mixer_card(name).streaming:
        return "no streaming"
    mixer = create_mixer(name, 64, num_heads=4, causal=True, max_length=TOKENS).eval()
    with torch.no_grad():
        _, state = mixer.prefill(torch.zeros(1, TOKENS, 64))
    return f"{sum(part.numel() for key, part in state.items() if key != 'position'):,}"


WRITERS = {"limits": limits, "reproduced": reproduced, "choose": choose}
