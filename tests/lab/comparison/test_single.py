"""Tests of `rifflemix train`: one mixer with one seed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.comparison import CompareConfig, plan_single, resolve, train_single
from rifflemix.lab.runs.status import RunStatus
from rifflemix.lab.tasks import task_card

OLD_RUN = Path(__file__).parent / "old_run"
"""Run that version 0.1.0.dev (commit a09549a) stopped after step 10."""


def config(**settings: object) -> CompareConfig:
    chosen = {"max_steps": 30, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 1}
    return resolve(
        task_card("digits"),
        {"csp": "csp"},
        (0,),
        device="cpu",
        threads=1,
        task_options={"patch_size": 4},
        train_options={"checkpoint_every": 15, "eval_every": 10},
        **{**chosen, **settings},
    )


def test_a_run_of_an_older_version_continues(tmp_path: Path) -> None:
    out = shutil.copytree(OLD_RUN, tmp_path / "out")
    statuses: list[RunStatus] = []
    found = train_single(plan_single(config(), out), on_status=statuses.append).result
    assert statuses[0].step >= 10
    straight = train_single(plan_single(config(), tmp_path / "straight")).result
    assert found.step == straight.step == 30
    # Processors differ in the last bits.
    assert found.train_loss == pytest.approx(straight.train_loss, rel=1e-3)
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [
        "config.json",
        "results.json",
        "run",
    ]


def test_a_run_of_an_older_version_with_other_settings_is_refused(tmp_path: Path) -> None:
    out = shutil.copytree(OLD_RUN, tmp_path / "out")
    with pytest.raises(InputError, match=r"config\.lr"):
        train_single(plan_single(config(lr=0.5), out))
    assert train_single(plan_single(config(), out)).result.step == 30


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"lr": 0.5}, "train.lr"), ({"dim": 16}, "dim"), ({"model": "encoder"}, "")],
)
def test_settings_decide_whether_a_run_continues(
    changes: dict[str, object], name: str, tmp_path: Path
) -> None:
    plan = plan_single(config(max_steps=4), tmp_path)
    asked = iter([False, False])
    assert not train_single(plan, should_stop=lambda: next(asked, True)).result.finished
    again = plan_single(config(max_steps=4, **changes), tmp_path)
    if name:
        with pytest.raises(InputError, match=name):
            train_single(again)
    else:
        assert train_single(again).result.finished
