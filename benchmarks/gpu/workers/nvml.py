"""Memory of this program's GPU as NVML and CUDA show it."""

from __future__ import annotations

import os

from _driver import Gpu
from _worker import need, parser, say


def main() -> None:
    """Make a context, wait until the figures settle, and print both views."""
    parser(__doc__).parse_args()
    nvml = need("pynvml")
    gpu = Gpu()
    free, total = gpu.settled_memory_mib()
    nvml.nvmlInit()
    uuid = os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]
    memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
    say(
        cuda_free_mib=free,
        cuda_total_mib=total,
        nvml_free_mib=memory.free / 2**20,
        nvml_total_mib=memory.total / 2**20,
        devices=nvml.nvmlDeviceGetCount(),
    )


if __name__ == "__main__":
    main()
