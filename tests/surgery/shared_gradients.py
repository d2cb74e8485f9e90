"""Script of test_matrix for torchrun: half a batch per process, gradients to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed.nn.functional  # otherwise its defaults would keep the group alive
from matrix import Program, swapped, tokens
from matrix_hosts import HOSTS


def main(file: Path) -> None:
    rank = torch.distributed.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(Program(HOSTS[1], swapped(HOSTS[1], "tssa")))
    model(tokens()[rank : rank + 1]).square().mean().backward()
    if rank == 0:
        grads = {name: parameter.grad for name, parameter in model.module.named_parameters()}
        torch.save(grads, file)


torch.distributed.init_process_group("gloo")
main(Path(sys.argv[1]))  # the model keeps the group alive and must be deleted first
torch.distributed.destroy_process_group()
