"""Which kernels the passes of layers are made of, and how long each takes on the GPU."""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from rifflemix.lab.bench.layers import layer_candidates
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Call, Settings
from rifflemix.lab.runs.environment import environment

_CALLS = 10


def show(title: str, call: Call) -> None:
    """Print the kernels of a call, those that take longest first."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_CALLS):
            call()
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.self_device_time_total]
    events.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / _CALLS
    print(f"{title}: {total:.1f} us")
    for event in events:
        microseconds, count = event.self_device_time_total / _CALLS, event.count / _CALLS
        print(f"{microseconds:9.1f} us {count:5.1f} x  {event.key[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mixers", nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU that torch can use, found none: run it where one is")
    here = environment()
    libraries = ", ".join(f"{name} {version}" for name, version in here["libraries"].items())
    print(f"{here['hardware']['gpu']}, {libraries}, commit {here['git_commit']}", end="\n\n")
    settings = Settings(dtype="bfloat16", device="cuda")
    for tokens in arguments.tokens:
        for candidate in layer_candidates(arguments.mixers, (), settings):
            if candidate.name in arguments.mixers:
                for name, call in candidate.build(Shape(8, tokens, 512, 8)).passes.items():
                    show(f"{candidate.name}, N={tokens:,}, {name}", call)


if __name__ == "__main__":
    main()
