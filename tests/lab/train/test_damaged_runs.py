"""Check that files with right checksums and wrong contents give one sentence each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import SETTINGS, ToyTask, make_config, make_model

from rifflemix.errors import InputError
from rifflemix.files import read_tensors, write_tensors
from rifflemix.lab.train import TrainEvent, TrainResult, train
from rifflemix.lab.train.run_folder import read_log


class Killed(BaseException):
    """Ends a run without a chance to save."""


def run(folder: Path, kill_at: int | None = None) -> TrainResult:
    def on_event(event: TrainEvent) -> None:
        if kill_at is not None and event.kind == "step" and event.step >= kill_at:
            raise Killed

    config = make_config(eval_every=2, checkpoint_every=2, log_every=2)
    model = make_model()
    return train(
        model, ToyTask(), config, folder, device="cpu", on_event=on_event, model_settings=SETTINGS
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        run(folder, kill_at=7)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder)
    return folder


Tensors = dict[str, torch.Tensor]


def wider(tensors: Tensors, meta: Any) -> Any:
    for name in [name for name in tensors if name.startswith("model/") and tensors[name].dim()]:
        tensors[name] = torch.cat([tensors[name]] * 2)
    return meta


def only(prefix: str) -> Callable[[Tensors, Any], Any]:
    def change(tensors: Tensors, meta: Any) -> Any:
        for name in [name for name in tensors if not name.startswith(prefix)]:
            del tensors[name]
        return meta

    return change


def other_noise(tensors: Tensors, meta: Any) -> Any:
    tensors["rng/torch"] = torch.full_like(tensors["rng/torch"], 255)
    return meta


def half(tensors: Tensors, meta: Any) -> Any:
    name = next(name for name in tensors if name.startswith("model/"))
    tensors[name] = tensors[name].half()
    return meta


CHANGES: dict[str, Callable[[Tensors, Any], Any]] = {
    "meta is a number": lambda tensors, meta: 5,
    "meta is a list": lambda tensors, meta: [{}],
    "meta is empty": lambda tensors, meta: {},
    "step is a text": lambda tensors, meta: {**meta, "step": "4"},
    "step is negative": lambda tensors, meta: {**meta, "step": -1},
    "step is beyond the end": lambda tensors, meta: {**meta, "step": 10**9},
    "log_bytes is a list": lambda tensors, meta: {**meta, "log_bytes": []},
    "log_bytes is negative": lambda tensors, meta: {**meta, "log_bytes": -1},
    "losses of texts": lambda tensors, meta: {**meta, "losses": ["a"]},
    "evaluations without a step": lambda tensors, meta: {**meta, "validation": [{}]},
    "seconds are a list": lambda tensors, meta: {**meta, "seconds": [1]},
    "no best weights, but a best step": only(("model/", "optimizer/", "rng/")),  # type: ignore[arg-type] # startswith takes a tuple
    "no optimizer": only(("model/", "best/", "rng/")),  # type: ignore[arg-type]
    "no weights": only(("optimizer/", "best/", "rng/")),  # type: ignore[arg-type]
    "another width": wider,
    "another type": half,
    "noise of no generator": other_noise,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_checkpoints(
    change: Callable[[Tensors, Any], Any], killed: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(killed, tmp_path / "run")
    path = folder / "checkpoint.safetensors"
    tensors, meta = read_tensors(path)
    write_tensors(path, tensors, change(tensors, meta))
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "log.jsonl"}
    with pytest.raises(InputError, match=r"checkpoint\.safetensors\b.*damaged"):
        run(folder)
    assert before == {name: (folder / name).read_bytes() for name in before}


@pytest.mark.parametrize("line", ['{"split": "train", "step": 3}', '["train"]', "5"])
def test_invalid_log_lines(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"split": "train", "step": 2, "loss": 0.5}\n' + line + "\n")
    with pytest.raises(InputError, match=r"log\.jsonl\b.*damaged.*line 2"):
        read_log(path)


def test_best_weights_and_checkpoint_swapped(killed: Path, finished: Path, tmp_path: Path) -> None:
    for source in (killed, finished):
        folder = shutil.copytree(source, tmp_path / source.parent.name)
        best, checkpoint = folder / "best.safetensors", folder / "checkpoint.safetensors"
        best.rename(folder / "x")
        checkpoint.rename(best)
        (folder / "x").rename(checkpoint)
        with pytest.raises(InputError, match=r"\.safetensors\b.*damaged"):
            run(folder)


def test_lost_best_weights_are_restored_from_the_checkpoint(
    killed: Path, finished: Path, tmp_path: Path
) -> None:
    wanted = (finished / "best.safetensors").read_bytes()
    folder = shutil.copytree(killed, tmp_path / "killed")
    (folder / "best.safetensors").unlink()
    run(folder)
    assert (folder / "best.safetensors").read_bytes() == wanted
    for damage in (Path.unlink, lambda path: path.write_bytes(wanted[:-9])):
        folder = shutil.copytree(finished, tmp_path / "finished", dirs_exist_ok=True)
        damage(folder / "best.safetensors")
        with pytest.raises(InputError, match=r"best\.safetensors\b.*training\.json"):
            run(folder)
        (folder / "training.json").unlink()
        run(folder)
        assert (folder / "best.safetensors").read_bytes() == wanted


@pytest.mark.parametrize(
    "text",
    [
        "5", "{}", '[{"a": 1}]', "[" * 100_000,
        {"test": None}, {"best_step": 10**6}, {"validation": 5}, {"validation": [{}]},
        {"seconds": {"train": "1"}}, {"step": 1.5}, {"metric": "rmse"}, {"finished": False},
    ],
    ids=str,
)  # fmt: skip
def test_changed_results(text: str | dict[str, Any], finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    path = folder / "training.json"
    if isinstance(text, dict):
        text = json.dumps({**json.loads(path.read_text()), **text})
    path.write_text(text)
    with pytest.raises(InputError, match=r"training\.json\b.*damaged"):
        run(folder)
    path.unlink()
    assert (
        run(folder).test
        == TrainResult.from_dict(json.loads((finished / "training.json").read_text())).test
    )


def test_changed_digit_is_detected(killed: Path, finished: Path, tmp_path: Path) -> None:
    """Change one digit: the file stays valid JSON but is not a result of this run."""
    for source, name, number in (
        (finished, "training.json", r'"accuracy": 0\.(\d)'),
        (killed, "log.jsonl", r'"loss": \d+\.(\d)'),
    ):
        folder = shutil.copytree(source, tmp_path / source.parent.name)
        path = folder / name
        text = path.read_text()
        found = re.search(number, text)
        assert found is not None
        digit = str((int(found[1]) + 1) % 10)
        path.write_text(text[: found.start(1)] + digit + text[found.end(1) :])
        with pytest.raises(InputError, match=rf"{name}\b.*damaged"):
            run(folder)


def test_a_checkpoint_without_the_checksum_of_its_log(killed: Path, tmp_path: Path) -> None:
    """Read a checkpoint of an older version."""
    folder = shutil.copytree(killed, tmp_path / "run")
    path = folder / "checkpoint.safetensors"
    tensors, meta = read_tensors(path)
    del meta["log_sha256"]
    write_tensors(path, tensors, meta)
    assert run(folder).finished


@pytest.mark.parametrize("line", ["{", "5", '{"split": "train"}', "[" * 99, "\xff"])
def test_log_damaged_without_changing_its_size(line: str, killed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(killed, tmp_path / "run")
    log = folder / "log.jsonl"
    size = log.stat().st_size
    content = line.encode("latin-1") + b"\n"
    log.write_bytes(content + log.read_bytes()[len(content) :])
    assert log.stat().st_size == size
    with pytest.raises(InputError, match=r"log\.jsonl\b.*damaged"):
        run(folder)
