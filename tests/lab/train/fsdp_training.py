"""Run toy_training with FSDP2 on the CPU; test_distributed_training starts it with torchrun."""

from __future__ import annotations

import os
import sys

import pytest
import toy_training

from fsdp_on_cpu import shard_training

if __name__ == "__main__":
    shard_training(pytest.MonkeyPatch())
    toy_training.main(*sys.argv[1:])
    # torch's sharding caches keep the group, and its threads may abort the interpreter's exit.
    sys.stdout.flush()
    os._exit(0)
