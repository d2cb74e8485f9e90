"""Sentences and the table of docs/choose.md, from the CSV files in docs/data; plots of speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from charts import scatter
from common import ASSETS, DATA, DOCS, link, listed, newest_benchmark, training

from blocks.speed import TOKENS, all_times, factor, picture, speed_up
from rifflemix.mixers import HEADLINE, create_mixer, mixer_card
from rifflemix.text import Markdown, code, table_lines

_LISTOPS_TOKENS = 2048


def table(name: str) -> pd.DataFrame:
    """Read a table of docs/data."""
    return pd.read_csv(DATA / f"{name}.csv")


def _source(page: Path, *names: str) -> str:
    links = (f"[{name}.csv]({link(page, DATA / f'{name}.csv')})" for name in names)
    return f"Data: {', '.join(links)}."


def _listops() -> pd.DataFrame:
    """Return the rows of ListOps by mixer, without rows of other implementations."""
    rows = table("host")
    is_own = rows.apply(lambda row: row.recipe.endswith(f"-{row.mixer}"), axis=1)
    return rows[is_own].set_index("mixer")


def limits(page: Path, _: list[str]) -> str:
    """Write which mixers learn ListOps of full length."""
    found = _listops()
    found = found.loc[[name for name in HEADLINE if name in found.index]]
    is_idle = found.learned_from_step.str.fullmatch("never( never)*")
    idle = found[is_idle].ours
    learned = (f"`{name}` ({ours:.1f} %)" for name, ours in found[~is_idle].ours.items())
    return (
        f"On ListOps with 2,000 tokens, {listed([code(name) for name in idle.index])} stay at the "
        f"majority class ({listed([f'{ours:.1f} %' for ours in idle])}). "
        f"{listed(list(learned))} learn the task. {_source(page, 'host')}"
    )


def reproduced(page: Path, _: list[str]) -> str:
    """Count reproduced rows and confirmed claims."""
    rows = table("printed")
    rows = rows[~rows.is_reduced]
    compared = rows[rows.printed.notna()]
    error = np.hypot(compared.standard_error, compared.standard_error_printed)
    within = (compared.ours - compared.printed).abs() <= 2 * error
    verdicts = table("verdicts").verdict
    return (
        f"We ran {len(rows)} reported results of the papers in full, {len(compared)} of them on "
        f"the paper's data. {within.sum()} of these {len(compared)} agree within two standard "
        f"errors. Of {(verdicts != 'not run yet').sum()} claims that we tested on small models, "
        f"{(verdicts == 'holds').sum()} hold. {_source(page, 'printed', 'verdicts')}"
    )


def _trade() -> list[tuple[str, float, float]]:
    """Return the speed-up of training on a CPU and the accuracy on ListOps of mixers."""
    cpu, found = all_times()[0], _listops().ours
    return [
        (name, speed_up(cpu, name, _LISTOPS_TOKENS), float(found[name]))
        for name in HEADLINE
        if name in found
    ]


def files() -> dict[Path, str]:
    """Draw the plots of speed, and of accuracy against speed at the length of ListOps."""
    trade = scatter(
        f"Accuracy against speed, {_LISTOPS_TOKENS:,} tokens",
        _trade(),
        "training speed of a layer on a CPU, softmax attention = 1",
        "accuracy on ListOps, %",
    )
    return {ASSETS / "speed.svg": picture(), ASSETS / "accuracy-speed.svg": trade}


def choose(page: Path, _: list[str]) -> str:
    """Write speed, memory, state and accuracy of the headline mixers."""
    trade = (f"{name} {rate:.1f}x and {score:.0f} %" for name, rate, score in _trade())
    alt = f"Training speed and accuracy on ListOps: {', '.join(trade)}."
    memory = training(newest_benchmark("scaling").content, "peak_memory_bytes", HEADLINE)
    listops, images = _listops().ours, table("every-mixer").set_index("mixer").test
    rows = [
        [
            _named(page, name),
            *(factor(speed_up(times, name)) if name in times else "" for times in all_times()),
            f"{memory[name][TOKENS] / memory['softmax'][TOKENS]:.2f}x",
            _state(name),
            f"{listops[name]:.1f} %" if name in listops else "",
            f"{100 * images[name]:.1f} %",
        ]
        for name in HEADLINE
    ]
    headers = ["mixer", "CPU speed-up", "H200 speed-up, from Python", "H200 speed-up, CUDA graph",
               "CPU training memory", "state, causal", "ListOps-2,000", "CIFAR-10"]  # fmt: skip
    note = (
        f"Speed-up and memory: training of one layer at {TOKENS:,} tokens, relative to softmax "
        "attention. Speed-up: higher is better; memory: lower is better. An empty cell was not "
        "measured. State: numbers per sequence that a causal layer of 64 channels and 4 heads "
        f"stores after {TOKENS:,} tokens. ListOps-2,000 and CIFAR-10: test accuracies. On "
        f"CIFAR-10 a model without mixing reaches {100 * images['identity']:.1f} %. "
        f"{_source(page, 'speed', 'memory', 'host', 'every-mixer')}"
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
