"""A tenant sees through NVML only its own GPUs, memory, processes and use."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lease_folder import UNIT, LeasedGpu, LeaseFolder, owner_of
from native_harness import GIB, MIB, NATIVE, clean_environment
from nvml_harness import A100, LAST, MIG_2G, MIG_3G, T4, ask, cards_folder, holder_program, on_gpu

from requires import cc

NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino
INSUFFICIENT, INVALID, NOT_FOUND, NO_LIBRARY = 7, 2, 6, 12


@pytest.fixture(scope="module")
def holder(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return holder_program(tmp_path_factory.mktemp("holder"))


def leased(uuid: str, limit: int = 4 * GIB) -> LeasedGpu:
    """Create a slice of one GPU of the folder of cards."""
    digits = uuid.removeprefix("GPU-").removeprefix("MIG-").removeprefix("EMULATED-").replace("-", "")
    return LeasedGpu(bytes.fromhex(digits), limit, uuid_text=uuid)


class Tenant:
    """A lease on some of the cards, and its processes' view of NVML."""

    def __init__(self, native: Path, folder: Path, gpus: tuple[LeasedGpu, ...], nvml: str | None = None) -> None:
        self.library = native / "share/libnvidia-ml.so.1"
        self.gpus = cards_folder(folder / "gpus")
        driver = str(native / "fake/libnvidia-ml.so.1") if nvml is None else nvml
        self.lease = LeaseFolder(folder / "lease", gpus, native / "fake/libcuda.so.1", driver)

    def ask(self, script: str) -> Any:
        lease = {"GPUPOOL_LEASE_DIR": str(self.lease.path), "GPUPOOL_FAKE_GPUS": str(self.gpus)}
        return ask(self.library, script, lease)

    def enlist(self, slot: int, pid: int, *, host_pid: int = 0, namespace: int = NAMESPACE) -> None:
        """Give a process a slot, as the share library and the arbiter do."""
        self.lease.set_slot(slot, "owner", owner_of(pid) if not host_pid else 12345 << 22 | pid)
        self.lease.set_slot(slot, "pid_ns", namespace)
        self.lease.set_slot(slot, "host_pid", host_pid)


Make = Callable[..., Tenant]


@pytest.fixture
def tenant(native_out: Path, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(*gpus: LeasedGpu, nvml: str | None = None) -> Tenant:
            made = Tenant(native_out, tmp_path, gpus, nvml)
            stack.callback(made.lease.close)
            return made

        yield make


def test_there_are_the_gpus_of_the_lease_in_its_order_and_no_others(tenant: Make) -> None:
    told = tenant(leased(LAST), leased(T4)).ask(f"""
        early = [code(nvmlDeviceGetCount), code(nvmlDeviceGetHandleByIndex, 9)]
        nvmlInit()
        handles = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
        fake = nvmlDeviceGetHandleByPciBusId("00000000:03:00.0")
        tell({{
            "early": early,
            "uuids": [nvmlDeviceGetUUID(h) for h in handles],
            "indices": [nvmlDeviceGetIndex(h) for h in handles],
            "by bus": nvmlDeviceGetUUID(fake),
            "by uuid": nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID("{T4}")),
            "by serial": nvmlDeviceGetIndex(nvmlDeviceGetHandleBySerial("EMULATED0002")),
            "others": [code(nvmlDeviceGetHandleByIndex, 2), code(nvmlDeviceGetHandleByUUID, "{A100}"),
                       code(nvmlDeviceGetHandleByPciBusId, "00000000:02:00.0"),
                       code(nvmlDeviceGetHandleBySerial, "EMULATED0001"), code(nvmlDeviceGetHandleByUUID, "{MIG_3G}")],
            "near": [nvmlDeviceGetUUID(h) for h in nvmlDeviceGetTopologyNearestGpus(handles[0], 50)],
        }})
    """)
    assert told["uuids"] == [LAST, T4]
    assert told["indices"] == [0, 1]
    assert (told["by bus"], told["by uuid"], told["by serial"]) == (LAST, 1, 0)
    assert told["others"] == [INVALID, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND]
    assert told["near"] == [T4]
    assert told["early"] == [1, 1]


MEMORY = """
    nvmlInit()
    h = nvmlDeviceGetHandleByIndex(0)
    one, two = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
    tell([[m.total, m.used, m.free] for m in (one, two)] + [two.reserved, nvmlDeviceGetBAR1MemoryInfo(h).bar1Total])
"""


@pytest.mark.parametrize(
    ("units", "correction", "used"),
    [
        (0, 0, 0),
        (3, 0, 3 * UNIT),
        (3, 700, 3 * UNIT + 700),
        (3, -UNIT, 2 * UNIT),
        (3, -10 * UNIT, 0),
        ((4 * GIB + UNIT) // UNIT, 0, 4 * GIB),
        (1, 8 * GIB, 4 * GIB),
    ],
)
def test_memory_total_is_slice_and_use_is_ledgers_plus_driver(
    tenant: Make, units: int, correction: int, used: int
) -> None:
    made = tenant(leased(T4, 4 * GIB))
    offset = 4096  # of the status page: the tenant's word comes first
    made.lease.status[offset : offset + 8] = (units << 30).to_bytes(8, "little")
    made.lease.set_control("correction_bytes", correction)
    seen = [4 * GIB, used, 4 * GIB - used]
    assert made.ask(MEMORY) == [seen, seen, 0, 256 * MIB]


PROCESSES = """
    nvmlInit()
    h = nvmlDeviceGetHandleByIndex(0)
    v1 = [nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses,
          nvmlDeviceGetMPSComputeRunningProcesses]
    tell([pids(h), *[pids(h, ask) for ask in v1]])
"""


def test_processes_are_those_with_a_slot_in_the_lease(tenant: Make, holder: Path) -> None:
    made = tenant(leased(T4))
    with (
        on_gpu(holder, made.gpus, (0, -1), GIB) as own,
        on_gpu(holder, made.gpus, (0, -1), 2 * GIB),
        on_gpu(holder, made.gpus, (0, -1), 3 * GIB) as second,
    ):
        assert made.ask(PROCESSES) == [[], [], [], []]
        made.enlist(5, own.pid)
        made.enlist(77, second.pid)
        both = sorted([[own.pid, GIB], [second.pid, 3 * GIB]])
        assert made.ask(PROCESSES) == [both, both, [], []]
        second.kill()
        second.wait()
        assert made.ask(PROCESSES)[0] == [[own.pid, GIB]]


def test_process_of_other_namespace_has_its_host_pid(tenant: Make, holder: Path) -> None:
    made = tenant(leased(T4))
    with on_gpu(holder, made.gpus, (0, -1), GIB) as far:
        made.enlist(0, 4242, host_pid=far.pid, namespace=1)
        assert made.ask(PROCESSES)[0] == [[far.pid, GIB]]
        made.enlist(0, 4242, host_pid=far.pid)  # in the asking process's own namespace it is 4242
        assert made.ask(PROCESSES)[0] == [[4242, GIB]]
        made.enlist(0, far.pid, namespace=1)  # a process with this number in another namespace
        assert made.ask(PROCESSES)[0] == []


def test_list_sizes_are_reported_as_by_the_driver(tenant: Make, holder: Path) -> None:
    made = tenant(leased(T4))
    script = """
        import ctypes
        lib = ctypes.CDLL("libnvidia-ml.so.1")
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        def call(name, room, size, *rest):
            count, array = ctypes.c_uint(room), ctypes.create_string_buffer(max(room, 1) * size)
            result = getattr(lib, name)(h, ctypes.byref(count), array if room else None)
            return [result, count.value]
        def samples(room):
            count, array = ctypes.c_uint(room), (c_nvmlProcessUtilizationSample_t * max(room, 1))()
            result = lib.nvmlDeviceGetProcessUtilization(h, array if room else None, ctypes.byref(count),
                                                         ctypes.c_ulonglong(0))
            return [result, count.value]
        names = ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2",
                 "nvmlDeviceGetComputeRunningProcesses_v3"]
        tell([[call(name, room, size) for room in (0, 1, 9)] for name, size in zip(names, (16, 24, 24))]
             + [[samples(room) for room in (0, 1, 9)]])
    """
    nobody = [[0, 0], [0, 0], [0, 0]]
    with ExitStack() as stack:
        own = [stack.enter_context(on_gpu(holder, made.gpus, (0, -1), MIB)) for _ in range(4)]
        assert made.ask(script) == [nobody, nobody, nobody, [[NOT_FOUND, 0]] * 3]
        for slot, process in enumerate(own[:2]):
            made.enlist(slot, process.pid)
        two = [[INSUFFICIENT, 2], [INSUFFICIENT, 2], [0, 2]]
        assert made.ask(script) == [two] * 4


def test_utilisation_is_that_of_the_lease(tenant: Make, holder: Path) -> None:
    made = tenant(leased(T4))
    script = """
        import time
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        for _ in range(20):
            time.sleep(0.05)
            rate = nvmlDeviceGetUtilizationRates(h).gpu
        tell(rate)
    """
    hour_ns = 3600 * 10**9
    with (
        on_gpu(holder, made.gpus, (0, -1), MIB, hour_ns) as neighbour,
        on_gpu(holder, made.gpus, (0, -1), MIB) as own,
    ):
        made.enlist(0, own.pid)
        assert made.ask(script) == 0
        made.enlist(1, neighbour.pid)
        assert made.ask(script) >= 50


def test_slice_of_mig_instance_is_found_with_its_gpu(tenant: Make, holder: Path) -> None:
    made = tenant(leased(MIG_2G, 3 * GIB))
    script = f"""
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        card = nvmlDeviceGetHandleByPciBusId("00000000:02:00.0")
        tell([nvmlDeviceGetCount(), nvmlDeviceGetUUID(h), nvmlDeviceGetMemoryInfo(h).total, pids(h),
              nvmlDeviceGetUUID(card), code(nvmlDeviceGetHandleByUUID, "{MIG_3G}")])
    """
    with on_gpu(holder, made.gpus, (1, 1), GIB) as own, on_gpu(holder, made.gpus, (1, 1), GIB):
        made.enlist(0, own.pid)
        assert made.ask(script) == [1, MIG_2G, 3 * GIB, [[own.pid, GIB]], A100, NOT_FOUND]


def test_calls_pass_through_without_a_lease(native_out: Path, tmp_path: Path, holder: Path) -> None:
    gpus = cards_folder(tmp_path / "gpus")
    env = {"GPUPOOL_FAKE_GPUS": str(gpus), "GPUPOOL_NVML_DRIVER": str(native_out / "fake/libnvidia-ml.so.1")}
    with on_gpu(holder, gpus, (0, -1), GIB) as process:
        script = """
            nvmlInit()
            h = nvmlDeviceGetHandleByIndex(0)
            tell([nvmlDeviceGetCount(), nvmlDeviceGetMemoryInfo(h).total, nvmlDeviceGetMemoryInfo(h).used, pids(h)])
        """
        told = ask(native_out / "share/libnvidia-ml.so.1", script, env)
    assert told == [3, 16 * GIB, GIB, [[process.pid, GIB]]]


def test_unusable_pages_leave_no_gpu(tenant: Make) -> None:
    made = tenant(leased(T4))
    (made.lease.path / "control").write_bytes(b"nonsense" * 1024)
    env = {
        "GPUPOOL_LEASE_DIR": str(made.lease.path),
        "GPUPOOL_FAKE_GPUS": str(made.gpus),
        "GPUPOOL_NVML_DRIVER": str(made.library.parents[1] / "fake/libnvidia-ml.so.1"),
    }
    script = f"nvmlInit(); tell([nvmlDeviceGetCount(), code(nvmlDeviceGetHandleByUUID, '{T4}')])"
    assert ask(made.library, script, env) == [0, NOT_FOUND]


@pytest.mark.parametrize("path", ["/nowhere/libnvidia-ml.so.1", ""])
def test_without_a_real_library_there_is_none(native_out: Path, tenant: Make, path: str) -> None:
    made = tenant(leased(T4), nvml=path)
    other = str(native_out / "fake/libnvidia-ml.so.1")
    env = {"GPUPOOL_LEASE_DIR": str(made.lease.path), "GPUPOOL_NVML_DRIVER": other}
    assert ask(made.library, "tell(code(nvmlInit))", env) == NO_LIBRARY


def test_every_export_exists_and_passes_on_calls_without_hook(native_out: Path, tenant: Make) -> None:
    view = ctypes.CDLL(str(native_out / "share/libnvidia-ml.so.1"))
    listed = [line[10:-1] for line in (native_out / "generated/nvml_exports.h").read_text().splitlines()]
    assert [
        name for name in [*listed, "nvmlErrorString", "nvmlInternalGetExportTable"] if not hasattr(view, name)
    ] == []
    script = """
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        tell([nvmlDeviceGetPowerUsage(h), code(nvmlDeviceGetFanSpeed, h), nvmlSystemGetDriverVersion(),
              code(nvmlDeviceSetPowerManagementLimit, h, 1), nvmlErrorString(NVML_ERROR_NOT_FOUND)])
    """
    assert tenant(leased(T4)).ask(script) == [70000, 3, "580.00.00", 3, "Not Found"]


def test_library_does_nothing_without_calls(native_out: Path, tmp_path: Path) -> None:
    env = clean_environment() | {
        "LD_PRELOAD": str(native_out / "share/libnvidia-ml.so.1"),
        "GPUPOOL_LEASE_DIR": str(tmp_path / "absent"),
    }
    done = subprocess.run(["/bin/sh", "-c", "cat /proc/self/maps"], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "share/libnvidia-ml.so.1" in done.stdout
    assert "fake" not in done.stdout


def test_children_of_fork_see_the_same(tenant: Make, holder: Path) -> None:
    made = tenant(leased(T4))
    script = """
        import os
        nvmlInit()
        h = nvmlDeviceGetHandleByIndex(0)
        pid = os.fork()
        if pid == 0:
            tell([nvmlDeviceGetCount(), nvmlDeviceGetMemoryInfo(h).total])
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
    """
    assert made.ask(script) == [1, 4 * GIB]


@pytest.mark.parametrize(
    "find", ["nvmlDeviceGetHandleBySerial(b'EMULATED2')", "nvmlDeviceGetHandleByPciBusId(b'00000000:03:00.0')"]
)
def test_calls_inside_real_nvml_do_not_reach_the_view(native_out: Path, tmp_path: Path, find: str) -> None:
    """NVML looks for the machine's third card by its own export; the lease's view has only one card."""
    tenant = Tenant(native_out, tmp_path, (leased(LAST),))
    assert tenant.ask(f"nvmlInit(); tell(nvmlDeviceGetUUID({find}))") == LAST


def test_only_its_own_exports_are_bound_anew(tmp_path: Path) -> None:
    """Calls and tables of functions; an allocator that is preloaded stays the library's."""
    sources = {
        "real": """
            #include <stdlib.h>
            int nvmlInner(void) { return 1; }
            int (*const table[])(void) = {nvmlInner};
            int nvmlOuter(void) { void *volatile got = malloc(7777); free(got); return nvmlInner() * 10 + table[0](); }
        """,
        "front": """
            #include "real_library.h"
            #include <dlfcn.h>
            #include <stdint.h>
            int nvmlInner(void) { return 2; }
            int ask(const char *path) {
                void *real = gp_open_real_library(path, "", "", "nvmlOuter", (const void *)0);
                return ((int (*)(void))(uintptr_t)dlsym(real, "nvmlOuter"))();
            }
        """,
        "allocator": """
            #include <dlfcn.h>
            #include <stddef.h>
            int count;
            void *malloc(size_t size) {
                static void *(*real)(size_t);
                if (real == NULL) real = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
                count += size == 7777;
                return real(size);
            }
        """,
    }
    common = [str(NATIVE / "common" / name) for name in ("real_library.c", "bind_to_itself.c")]
    for name, source in sources.items():
        (tmp_path / f"{name}.c").write_text(source)
        folders = [f"-I{NATIVE / folder}" for folder in ("common", "include")]
        flags = ["-D_GNU_SOURCE=", *folders, "-shared", "-fPIC", "-O1", "-Wl,-z,relro,-z,now"]
        more = common if name == "front" else []
        cc(*flags, "-o", tmp_path / f"{name}.so", tmp_path / f"{name}.c", *more, "-ldl")
    program = """
import ctypes, sys
front, allocator = (ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:3])
print(front.ask(sys.argv[3].encode()), ctypes.c_int.in_dll(allocator, "count").value)
"""
    paths = [str(tmp_path / f"{name}.so") for name in ("front", "allocator", "real")]
    environment = clean_environment() | {"LD_PRELOAD": ":".join(paths[:2])}
    done = subprocess.run(
        [sys.executable, "-c", program, *paths], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["11", "1"]
