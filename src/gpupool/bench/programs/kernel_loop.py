"""Launch kernels of a fixed size without a pause and print how many have ended, until SIGTERM.

Runs in a job and needs only Python and the CUDA driver. Prints JSON lines: first ``rounds``, the size of a kernel, then
``t`` (Unix time) and ``n`` (kernels that have ended). Prints ``skip`` with a reason where no driver starts. The loop
of the kernel has a fixed number of rounds: a kernel that watched a clock would end early while others use the GPU.
The simulated driver takes the number as nanoseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time

THREADS = 256
BLOCKS_PER_PROCESSOR = 8  # full at every compute capability
REPORT_INTERVAL_S = 0.1
KERNELS_PER_BATCH = 2
MAX_TARGET = 80
MAJOR, MINOR, PROCESSORS = 75, 76, 16  # CUdevice_attribute

# The trap keeps the loop from being optimised away; it is never reached.
PTX = """
.version 7.0
.target sm_{target}
.address_size 64
.visible .entry spin_ns(.param .u64 rounds) {{
    .reg .pred %more, %never;
    .reg .u64 %left;
    .reg .f32 %a;
    ld.param.u64 %left, [rounds];
    mov.f32 %a, 0f3F800000;
again:
    setp.eq.u64 %more, %left, 0;
    @%more bra done;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    fma.rn.f32 %a, %a, %a, %a;
    sub.u64 %left, %left, 1;
    bra again;
done:
    setp.eq.f32 %never, %a, 0f12345678;
    @%never trap;
    ret;
}}
"""


def tell(**values: object) -> None:
    """Print one line."""
    print(json.dumps(values), flush=True)


class Driver:
    """The CUDA driver on the first GPU of this program."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
            self.call("cuInit", 0)
        except (OSError, RuntimeError) as error:
            tell(skip=f"the CUDA driver does not start in the job: {error}")
            sys.exit(0)
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._stream, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        major, minor, processors = (self._attribute(which, device) for which in (MAJOR, MINOR, PROCESSORS))
        text = PTX.format(target=min(major * 10 + minor, MAX_TARGET)).encode()
        self.call("cuModuleLoadData", ctypes.byref(module), text)
        self.call("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin_ns")
        self.call("cuStreamCreate", ctypes.byref(self._stream), 1)
        self._blocks = processors * BLOCKS_PER_PROCESSOR
        self._events = [self._event(), self._event()]

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver; raise ``RuntimeError`` unless it succeeds."""
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    def _attribute(self, which: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def launch(self, rounds: int, count: int, event: int) -> None:
        """Launch kernels, and record an event after them."""
        value = ctypes.c_uint64(rounds)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        for _ in range(count):
            self.call(
                *("cuLaunchKernel", self._function, self._blocks, 1, 1, THREADS, 1, 1, 0),
                *(self._stream, parameters, None),
            )
        self.call("cuEventRecord", self._events[event], self._stream)

    def wait(self, event: int) -> None:
        """Wait for an event."""
        self.call("cuEventSynchronize", self._events[event])


def calibrate(driver: Driver, kernel_s: float) -> int:
    """Return the rounds with which a kernel takes about this long on the otherwise unused GPU."""
    rounds = 1000
    while True:
        started = time.monotonic()
        driver.launch(rounds, 1, 0)
        driver.wait(0)
        took = time.monotonic() - started
        if took >= kernel_s / 2:
            return max(1, int(rounds * kernel_s / took))
        rounds *= 2


def main() -> None:
    """Launch until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=0, help="size of a kernel; 0: measure one of --kernel-ms")
    parser.add_argument("--kernel-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=600.0, help="end after this time without a signal")
    options = parser.parse_args()
    driver = Driver()
    rounds = options.rounds or calibrate(driver, options.kernel_ms / 1000)
    tell(rounds=rounds)
    ended, turn, reported = 0, 0, 0.0
    deadline = time.monotonic() + options.seconds
    driver.launch(rounds, KERNELS_PER_BATCH, turn)
    while time.monotonic() < deadline:
        turn = 1 - turn
        driver.launch(rounds, KERNELS_PER_BATCH, turn)  # the GPU has work while the last batch is waited for
        driver.wait(1 - turn)
        ended += KERNELS_PER_BATCH
        if time.monotonic() - reported >= REPORT_INTERVAL_S:
            reported = time.monotonic()
            tell(t=time.time(), n=ended)


if __name__ == "__main__":
    main()
