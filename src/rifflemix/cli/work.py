"""rifflemix work: join the runs of a folder."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rifflemix.cli.commands import parse_path
from rifflemix.cli.output import DataProgress, StopRequest, progress_console, show, tell
from rifflemix.errors import EXIT_INTERRUPTED, InputError, InputWarning, bad_argument
from rifflemix.lab.runs.options import DataDir

if TYPE_CHECKING:
    from rifflemix.lab.comparison import ComparePlan
    from rifflemix.lab.experiments import Experiment, Launch, Payload, Role, Shard
    from rifflemix.lab.runs.status import OnStatus, ShouldStop
    from rifflemix.lab.tasks import Progress

EPILOG = """Examples:

  rifflemix work runs/digits

  rifflemix work /shared/runs/small --data-dir /scratch/data

Ctrl-C stops after the current step; any worker continues from there.
"""
_WAIT = 1.0  # seconds between two looks at the runs of other workers
_POLL = 0.1


def work(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Results folder of compare, sweep, reproduce or train.", parser=parse_path
        ),
    ],
    data_dir: DataDir | None = None,
) -> None:
    """Train the remaining runs of a folder, together with other workers.

    The command that made the folder may still run, or may have been stopped.
    """
    from rifflemix.lab.experiments import Payload
    from rifflemix.lab.report.live import PlainLines

    lines = PlainLines(progress_console())
    place = None if data_dir is None else data_dir.absolute()
    with StopRequest(lines.note) as stop:
        code = work_on(folder.absolute(), Payload(), place, lines.update, stop, finishes=True)
    if code == EXIT_INTERRUPTED:
        tell(progress_console(), "stopped; run the same command to continue")
        raise typer.Exit(code)
    show(f"All runs in {folder} are finished.")


@dataclass(frozen=True)
class Job:
    """One experiment of a folder.

    Attributes:
        experiment: the runs.
        make: makes the runs that no other worker makes.
        finish: writes the tables of a finished experiment.
    """

    experiment: Experiment
    make: Callable[[OnStatus, ShouldStop], object]
    finish: Callable[[], object]

    def is_finished(self, shard: Shard) -> bool:
        """Check whether all runs of a part have records."""
        from rifflemix.lab.experiments import RunStore

        records = RunStore(self.experiment).records()
        left = [run for run in self.experiment.planned(records) if run.name not in records]
        return not any(shard.contains(self.experiment, run) for run in left)


def work_on(
    folder: Path,
    payload: Payload,
    data_dir: Path | None = None,
    on_status: OnStatus = lambda status: None,
    should_stop: ShouldStop = lambda: False,
    *,
    finishes: bool = False,
) -> int:
    """Train the runs of a folder until none is left.

    Args:
        folder: absolute path of the folder of the experiment.
        payload: objects of the process that started the experiment.
        data_dir: folder of the data files on this machine; None uses the path of the command.
        on_status: called with the status of each run.
        should_stop: polled at every step.
        finishes: write the tables when all runs are finished.

    Returns:
        The exit code.

    Raises:
        InputError: the folder is not an experiment, or its data cannot be loaded here.
    """
    from rifflemix.lab.experiments import StatusFile
    from rifflemix.locks import FolderInUse

    with DataProgress(progress_console()) as progress:
        jobs = open_jobs(folder, payload, data_dir, progress)

    for job in jobs:
        _warn_of_differences(job.experiment)
    with StatusFile(folder) as file:

        def tell_all(status: Any) -> None:
            file.update(status)
            on_status(status)

        while todo := [job for job in jobs if not job.is_finished(payload.shard)]:
            for job in todo:
                try:
                    job.make(tell_all, should_stop)
                except FolderInUse:
                    if len(jobs) == 1:
                        raise
                if should_stop():
                    return EXIT_INTERRUPTED
            if not any(job.is_finished(payload.shard) for job in todo):
                _wait(should_stop)
    if finishes:
        for job in jobs:
            job.finish()
    return 0


def _wait(should_stop: ShouldStop) -> None:
    """Wait for the runs of other workers, or for a request to stop."""
    end = time.monotonic() + _WAIT
    while time.monotonic() < end and not should_stop():
        time.sleep(_POLL)


def _warn_of_differences(experiment: Experiment) -> None:
    """Warn if the finished runs come from another processor or other versions."""
    from rifflemix.lab.experiments import RunStore, newest_environment
    from rifflemix.lab.runs.environment import this_environment

    earlier, here = newest_environment(RunStore(experiment).records()), this_environment()
    if earlier is None:
        return
    pairs = {
        "processor": (earlier.hardware.cpu, here.hardware.cpu),
        "GPU": (earlier.hardware.gpu, here.hardware.gpu),
        **{name: (of, here.libraries.get(name)) for name, of in earlier.libraries.items()},
    }
    for name, (before, now) in pairs.items():
        if before != now:
            warnings.warn(
                f"{experiment.out}: {name} was {before}, is {now}; the bits of results may differ",
                InputWarning,
                stacklevel=2,
            )


def open_jobs(
    folder: Path, payload: Payload, data_dir: Path | None, progress: Progress
) -> list[Job]:
    """Plan the experiments of a folder again. A finished folder without its data has none.

    Raises:
        InputError: as `work_on`.
    """
    from rifflemix.files import CONFIG_FILE, read_json
    from rifflemix.lab.experiments import read_launch
    from rifflemix.mixers import register_mixer
    from rifflemix.plugins import load_plugin

    path = folder / CONFIG_FILE
    settings = read_json(path) if path.is_file() else {}
    maker = _MAKERS.get(settings.get("format", "")) if isinstance(settings, dict) else None
    if maker is None:
        raise bad_argument("folder", "one of compare, sweep, reproduce or train", str(folder))
    launch = read_launch(folder)
    if launch is not None:
        sys.argv = launch.argv  # results name the command that made the folder
        if data_dir is None and launch.data_dir is not None:
            data_dir = Path(launch.directory, launch.data_dir)
        if Path(launch.directory).is_dir():
            os.chdir(launch.directory)  # paths in settings are relative to it
        for plugin in launch.plugins:
            load_plugin(plugin)
    for mixer in payload.mixers:
        register_mixer(mixer)
    try:
        return maker(_Folder(folder, settings, launch, payload, data_dir, progress))
    except InputError:
        if is_complete(folder):
            return []
        raise


def is_complete(folder: Path) -> bool:
    """Check, without the data, whether a folder has the results and the records of all its runs."""
    from rifflemix.files import read_json
    from rifflemix.lab.comparison.plan import RESULTS_FILE
    from rifflemix.lab.experiments.plan import RECORD_FILE

    path = folder / RESULTS_FILE
    results = read_json(path) if path.is_file() else {}
    runs = [run["folder"] for run in results.get("runs", []) if "folder" in run]
    has_all = all((folder / run / RECORD_FILE).is_file() for run in runs)
    is_trained = results.get("result", {}).get("finished") is True  # of train
    return has_all and (results.get("status") == "complete" or is_trained)


@dataclass(frozen=True)
class _Folder:
    """A folder and what is needed to plan its experiments again."""

    path: Path
    settings: Mapping[str, Any]
    launch: Launch | None
    payload: Payload
    data_dir: Path | None
    progress: Progress

    def below(self, name: str) -> _Folder:
        """Return the folder of one of several experiments."""
        from rifflemix.files import CONFIG_FILE, read_json

        path = self.path / name
        return replace(self, path=path, settings=read_json(path / CONFIG_FILE))

    @property
    def role(self) -> Role:
        """The role of this process."""
        from rifflemix.lab.experiments import Role

        return Role(is_worker=True, shard=self.payload.shard)

    def options(self) -> dict[str, Any]:
        """Return the options that tables and weights do not depend on."""
        return {} if self.launch is None else self.launch.options


def _comparison(folder: _Folder) -> list[Job]:
    return [_compare_job(folder, _compare_plan(folder))]


def _compare_job(folder: _Folder, plan: ComparePlan) -> Job:
    from rifflemix.lab.comparison import run_comparison
    from rifflemix.lab.comparison.pages.files import write_comparison_files
    from rifflemix.lab.comparison.rows import Table

    def make(on_status: OnStatus, should_stop: ShouldStop) -> object:
        return run_comparison(
            plan, on_status=on_status, should_stop=should_stop, role=folder.role, **folder.options()
        )

    def finish() -> None:
        write_comparison_files(plan.out, Table(run_comparison(plan)))

    return Job(plan, make, finish)


def _compare_plan(folder: _Folder) -> ComparePlan:
    from rifflemix.lab.comparison.plan import reopen_comparison

    task = folder.payload.task
    return reopen_comparison(
        folder.path,
        folder.settings,
        task=task,
        data_dir=folder.data_dir,
        progress=folder.progress,
    )


def _suite(folder: _Folder) -> list[Job]:
    from rifflemix.lab.comparison import SuitePlan, get_suite, run_comparison, run_suite

    below = {name: folder.below(name) for name in _launch(folder).folders}
    plans = {name: _compare_plan(one) for name, one in below.items()}
    suite = SuitePlan(get_suite(folder.settings["suite"]), plans, folder.path)

    def finish() -> None:
        run_suite(suite, run_comparison)

    *others, last = [_compare_job(one, plans[name]) for name, one in below.items()]
    return [*(replace(job, finish=lambda: None) for job in others), replace(last, finish=finish)]


def _single(folder: _Folder) -> list[Job]:
    from rifflemix.lab.comparison.single import reopen_single, train_single

    plan = reopen_single(
        folder.path, folder.settings, data_dir=folder.data_dir, progress=folder.progress
    )

    def make(on_status: OnStatus, should_stop: ShouldStop) -> object:
        return train_single(plan, on_status=on_status, should_stop=should_stop, **folder.options())

    return [Job(plan.experiment, make, lambda: None)]


def _sweep(folder: _Folder) -> list[Job]:
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction.sweep import plan_sweep, run_sweep

    settings = folder.settings
    plan = plan_sweep(
        get_recipe(settings["recipe"]),
        settings["grid"],
        settings["seeds"],
        folder.path,
        _reproduce_options(folder),
        progress=folder.progress,
    )

    def make(on_status: OnStatus, should_stop: ShouldStop) -> object:
        return run_sweep(plan, on_status=on_status, should_stop=should_stop, role=folder.role)

    return [Job(plan, make, lambda: run_sweep(plan))]


def _reproduction(folder: _Folder) -> list[Job]:
    from rifflemix.lab.experiments import OneRun
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction import plan_reproduction, run_reproduction

    recipe, options = get_recipe(folder.settings["recipe"]), _reproduce_options(folder)

    def make(on_status: OnStatus, should_stop: ShouldStop) -> object:
        # The data of several recipes may not fit into memory.
        plan = plan_reproduction(recipe, folder.path, options, progress=folder.progress)
        return run_reproduction(
            plan, on_status=on_status, should_stop=should_stop, role=folder.role
        )

    run = OneRun(folder.path, recipe.name, options.seed, folder.settings)
    return [Job(run, make, lambda: None)]


def _reproductions(folder: _Folder) -> list[Job]:
    shard, names = folder.payload.shard, folder.settings["recipes"]
    below = [folder.below(name) for name in names[shard.number - 1 :: shard.count]]
    return [job for one in below for job in _reproduction(one)]


def _launch(folder: _Folder) -> Launch:
    if folder.launch is None:
        got = str(folder.path)
        raise bad_argument("folder", "a folder with .launch.json", got, "run its command again")
    return folder.launch


def _reproduce_options(folder: _Folder) -> Any:
    from rifflemix.lab.runs.options import ReproduceOptions

    launch = _launch(folder)
    known = {field.name for field in fields(ReproduceOptions)}
    values = {name: value for name, value in launch.options.items() if name in known}
    if values.get("start_from") is not None:
        values["start_from"] = Path(values["start_from"])
    return ReproduceOptions(**{**values, "data_dir": folder.data_dir})


_MAKERS: dict[str, Callable[[_Folder], list[Job]]] = {
    "rifflemix.compare/1": _comparison,
    "rifflemix.suite/1": _suite,
    "rifflemix.train/1": _single,
    "rifflemix.sweep/1": _sweep,
    "rifflemix.reproduction/1": _reproduction,
    "rifflemix.reproductions/1": _reproductions,
}
"""Format of config.json -> function that plans the experiments of the folder."""
