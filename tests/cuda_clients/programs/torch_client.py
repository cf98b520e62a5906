"""PyTorch: write what it finds as one JSON object. Its kernels do not compute on an emulated GPU."""

import json
import sys
from typing import Any

import torch

COUNT, STEP = 50_000, 64 << 20


def fill() -> dict[str, Any]:
    """Take memory until PyTorch refuses."""
    taken = []
    try:
        while True:
            taken.append(torch.empty(STEP, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        return {"mib": len(taken) * (STEP >> 20), "error": type(error).__name__, "text": str(error)}


def main() -> None:
    free, total = torch.cuda.mem_get_info()
    found: dict[str, Any] = {
        "version": torch.__version__,
        "devices": torch.cuda.device_count(),
        "total_mib": total >> 20,
    }
    found["same_size"] = torch.cuda.get_device_properties(0).total_memory == total > free
    host = torch.arange(COUNT, dtype=torch.float32)
    x = host.pin_memory().to("cuda", non_blocking=True)
    found["copied"] = bool((x.cpu() == host).all())
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    y = (x * 2).sum()
    second.record()
    second.synchronize()
    found["timed"] = first.elapsed_time(second) >= 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    torch.cuda.synchronize()
    found["graph"] = list(y.shape) == [COUNT]
    found["plain"] = fill()
    torch.cuda.empty_cache()
    found["free_mib"] = torch.cuda.mem_get_info()[0] >> 20
    sys.stdout.write(json.dumps(found))


main()
