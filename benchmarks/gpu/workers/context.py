"""Memory of this process by NVML, with only a context, or after PyTorch has multiplied matrices."""

from __future__ import annotations

import os
import time

from _worker import need, parser, say

SAMPLES = 5


def main() -> None:
    """Make the context, wait until NVML has seen it, and say the median."""
    made = parser(__doc__)
    made.add_argument("--torch", action="store_true")
    options = made.parse_args()
    nvml = need("pynvml")
    if options.torch:
        torch = need("torch")
        if not torch.cuda.is_available():
            say(skip="PyTorch finds no GPU")
        square = torch.ones(256, 256, device="cuda")
        (square @ square).sum().item()
        uuid = os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]
    else:
        from _driver import Gpu

        gpu = Gpu()
        gpu.finish()
        uuid = os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    seen = []
    for _ in range(SAMPLES):
        time.sleep(0.3)
        own = [p for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
        if own and own[0].usedGpuMemory:
            seen.append(own[0].usedGpuMemory / 2**20)
    if not seen:
        say(skip="NVML does not show this process here (another pid namespace, or it does not tell memory)")
    say(mib=sorted(seen)[len(seen) // 2], samples=len(seen))


if __name__ == "__main__":
    main()
