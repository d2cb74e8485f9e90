"""Sharing the runs of a folder among workers, on this machine or on a Slurm cluster.

Each job supervises one worker. A job that is preempted or runs out of time stops its worker after a
checkpoint and is requeued. A canceled job leaves everything resumable.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rifflemix.errors import InputError, bad_argument, require_packages, unknown_name
from rifflemix.lab.experiments.overview import Expected, Observer, Overview
from rifflemix.lab.experiments.plan import Experiment
from rifflemix.lab.experiments.store import RunStore
from rifflemix.lab.experiments.workers import Payload, Pool, Workers
from rifflemix.lab.runs.status import ShouldStop, never

_FOLDER = ".slurm"
_KINDS: dict[str, tuple[type, ...]] = {
    "partition": (str,),
    "account": (str,),
    "qos": (str,),
    "constraint": (str,),
    "exclude": (str,),
    "nodelist": (str,),
    "comment": (str,),
    "time": (int,),
    "mem": (str,),
    "mem_per_cpu": (str,),
    "mem_per_gpu": (str,),
    "cpus_per_task": (int,),
    "cpus_per_gpu": (int,),
    "gpus_per_node": (int, str),
    "gpus_per_task": (int, str),
    "gres": (str,),
    "exclusive": (bool, str),
    "array_parallelism": (int,),
    "signal_delay_s": (int,),
    "setup": (list,),
    "additional_parameters": (dict,),
}
"""Keys of the file that submitit passes to sbatch -> types."""
_GPU_KEYS = ("gpus_per_node", "gpus_per_task", "gres")
_MOST_REQUEUES = 1_000
_SECONDS_BETWEEN_QUESTIONS = 5.0


@dataclass(frozen=True)
class Cluster:
    """The jobs of a --slurm file.

    Attributes:
        count: number of jobs, one worker each.
        threads: CPU threads of each worker.
        parameters: options of sbatch in the names of submitit.
    """

    count: int = 1
    threads: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_gpus(self) -> bool:
        """Whether the jobs ask for GPUs."""
        return any(name in self.parameters for name in _GPU_KEYS)


def read_cluster(path: Path) -> Cluster:
    """Read a --slurm file.

    Raises:
        InputError: the file cannot be read, or has an unknown key or a value of a wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"slurm: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"slurm: {path} is not TOML: {error}") from error
    workers = values.pop("workers", 1)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise bad_argument(f"workers in {path}", "a number of jobs, at least 1", repr(workers))
    for name, value in values.items():
        if name not in _KINDS:
            raise unknown_name(f"key of {path}", name, ["workers", *_KINDS])
        is_bool = isinstance(value, bool) and bool not in _KINDS[name]
        if is_bool or not isinstance(value, _KINDS[name]):
            expected = " or ".join(kind.__name__ for kind in _KINDS[name])
            raise bad_argument(f"{name} in {path}", expected, repr(value))
    return Cluster(workers, parameters=values)


class SlurmWorker:
    """The function of a job: one worker, restarted if it is killed.

    Args:
        out: folder of the experiment.
        threads: CPU threads.
        payload: objects that the worker needs.
    """

    def __init__(self, out: Path, threads: int, payload: Payload) -> None:
        self.out, self.threads, self.payload = out, threads, payload

    def __call__(self) -> None:
        """Carry out runs until none is left."""
        self._pool = Pool(self.out, Workers(1, self.threads), self.payload, print)
        self._pool.run()

    def checkpoint(self) -> Any:
        """Stop the worker after a checkpoint; submitit then requeues the job."""
        from submitit.helpers import DelayedSubmission

        self._pool.stop()
        self._pool.wait()
        return DelayedSubmission(SlurmWorker(self.out, self.threads, self.payload))


class Jobs:
    """Submitted jobs, in place of a pool of processes on this machine.

    Args:
        out: folder of the experiment, on a disk that all nodes share.
        cluster: the jobs.
        payload: objects that the workers need.

    Attributes:
        error: None; the state of jobs is in Slurm.

    Raises:
        InputError: submitit or Slurm is not installed, or Slurm refuses the jobs.
    """

    error = None

    def __init__(self, out: Path, cluster: Cluster, payload: Payload) -> None:
        require_packages("--slurm", "slurm", "submitit")
        if shutil.which("sbatch") is None:
            raise InputError("slurm: expected the command sbatch, got none on this machine")
        self._out = out
        self._cluster = cluster
        self._payload = payload
        self._ids: Sequence[str] = ()
        self._next, self._runs = 0.0, True

    def start(self) -> None:
        """Submit an array of jobs."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = submitit.SlurmExecutor(
            folder=self._out / _FOLDER, max_num_timeout=_MOST_REQUEUES
        )
        cluster = self._cluster
        chosen = {"job_name": "rifflemix", "cpus_per_task": cluster.threads}
        executor.update_parameters(stderr_to_stdout=True, **{**chosen, **cluster.parameters})
        worker = SlurmWorker(self._out.absolute(), cluster.threads, self._payload)
        try:
            with executor.batch():
                jobs = [executor.submit(worker) for _ in range(cluster.count)]
        except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"slurm: sbatch refused the jobs: {reason}") from error
        self._ids = [str(job.job_id) for job in jobs]

    def is_running(self) -> bool:
        """Ask Slurm whether a job is waiting or running, at most every few seconds."""
        if self._runs and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_QUESTIONS
            self._runs = bool(self._states())
        return self._runs

    def stop(self) -> None:
        """Cancel the jobs; Slurm asks the workers to end and kills them after its KillWait."""
        if self._ids:
            subprocess.run(["scancel", *self._ids], capture_output=True, check=False)

    def kill(self) -> None:
        """Cancel the jobs that are left."""
        self.stop()

    def delete_logs(self) -> None:
        """Delete the files of submitit."""
        shutil.rmtree(self._out / _FOLDER, ignore_errors=True)

    def _states(self) -> list[str]:
        ids = ",".join({job.partition("_")[0] for job in self._ids})
        command = ["squeue", "--noheader", "--format=%T", f"--jobs={ids}"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode != 0 and "Invalid job id" not in asked.stderr:
            return ["UNKNOWN"]  # the controller may be away for a moment
        return asked.stdout.split()


_POLL = 0.1  # seconds
_SECONDS_BETWEEN_LOOKS = 0.5


class Display(Protocol):
    """Shows the state of an experiment."""

    def update(self, overview: Overview, /) -> None:
        """Show the state."""
        ...

    def note(self, text: str) -> None:
        """Show a line of text."""
        ...


def share_runs(
    out: Path,
    experiments: Sequence[Experiment],
    workers: Workers | Cluster,
    display: Display,
    *,
    payload: Payload | None = None,
    expected: Expected = lambda run: None,
    should_stop: ShouldStop = never,
) -> None:
    """Carry out experiments with workers until no run is left.

    A killed worker is restarted. A run that fails repeatedly is published as failed.

    Args:
        out: folder of the command.
        experiments: the experiments, in `out` or in folders below it.
        workers: processes on this machine, or jobs of a cluster. No more are started than there
            are runs.
        display: shows the state.
        payload: objects that the workers need.
        expected: estimates the time of a run.
        should_stop: polled several times per second. True asks the workers to write a checkpoint
            and end.

    Raises:
        InputError: a worker cannot use the folder, the data or the device; or Slurm is missing or
            refuses the jobs.
        RunFailed: a worker was killed repeatedly before it started a run.
    """
    for experiment in experiments:
        RunStore(experiment).open()
    payload = payload or Payload()
    observer = Observer(out, experiments, expected, payload.shard)
    overview = observer.look()
    if overview.is_finished:
        return
    left = overview.planned - overview.done
    workers = replace(workers, count=min(workers.count, left))
    pool: Pool | Jobs
    if isinstance(workers, Cluster):
        pool = Jobs(out, workers, payload)
    else:
        pool = Pool(out, workers, payload, display.note)
    told = {record.name for record in overview.failed}
    is_stopped, next_look = False, 0.0
    try:
        pool.start()
        while pool.is_running():
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
                overview = observer.look()
                display.update(overview)
                for record in overview.failed:
                    if record.name not in told:
                        told.add(record.name)
                        display.note(f"{record.name}: {record.error}")
            if not is_stopped and (should_stop() or overview.is_finished):
                is_stopped = True
                pool.stop()
            time.sleep(_POLL)
    finally:
        pool.kill()
    overview = observer.look()
    display.update(overview)
    if pool.error is not None and not overview.is_finished:
        raise pool.error
    pool.delete_logs()
