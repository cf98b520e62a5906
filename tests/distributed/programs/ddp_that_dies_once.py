"""The example of DDP: one rank is killed half-way in the first round; in the end rank 0 trains alone to compare."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys

import torch
from torch import nn

spec = importlib.util.spec_from_file_location("torch_ddp", sys.argv[1])
ddp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ddp)
after_step = ddp.after_step


def dies_once(step: int, rank: int, *rest: object) -> None:
    after_step(step, rank, *rest)
    if rank == 2 and step == 7 and os.environ["GPUPOOL_ROUND"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def alone() -> float:
    """Return the loss of one process on the whole batch, without DDP or checkpoints."""
    model, (inputs, targets) = ddp.network(), ddp.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(ddp.STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return nn.functional.mse_loss(model(inputs), targets).item()


ddp.after_step = dies_once
ddp.main()
if os.environ["RANK"] == "0":
    sys.stdout.write(f"alone {alone():.12f}\n")
