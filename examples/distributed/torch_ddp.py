"""Train a small network on all ranks with DistributedDataParallel; after a restart continue from the last checkpoint.

    gpupool submit ddp --workers 4 --framework torch -- python3 torch_ddp.py

It also works as `python3 torch_ddp.py` alone and under torchrun: it does not depend on the pool. On GPUs it uses NCCL.
The batch is divided among the ranks, so the loss is that of one process, for any number of ranks.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "12"))
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "ddp-checkpoint.pt"))
EVERY = 3  # steps between checkpoints
BATCH = 48


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same data on every rank."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
    return inputs, torch.sin(inputs.sum(dim=1, keepdim=True))


def network() -> nn.Module:
    """Return a model with the same weights on every rank."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()


def main() -> None:
    """Train, and print the loss on rank 0."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"rank {rank} of {world} continues from step {first}", flush=True)
    inputs, targets = (part.to(device)[rank::world] for part in data())
    for step in range(first, STEPS):
        optimizer.zero_grad()
        # Mean over all ranks: DDP averages gradients, so each rank's sum is weighted by the number of ranks.
        loss = nn.functional.mse_loss(model(inputs), targets, reduction="sum") * world / BATCH
        loss.backward()
        optimizer.step()
        after_step(step + 1, rank, model, optimizer)
    total = nn.functional.mse_loss(model(inputs), targets, reduction="sum").detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"loss {total.item() / BATCH:.12f} after {STEPS} steps on {world} ranks", flush=True)
    dist.barrier()  # meanwhile a thread of gloo frees the reduced tensor, for which it needs the interpreter
    dist.destroy_process_group()


def after_step(step: int, rank: int, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Save a checkpoint on rank 0 from time to time; an incomplete one never replaces a complete one."""
    if rank == 0 and step % EVERY == 0:
        fresh = CHECKPOINT.with_suffix(".new")
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, fresh)
        fresh.replace(CHECKPOINT)


if __name__ == "__main__":
    main()
