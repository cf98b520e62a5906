from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.node.sharing.slices import lease_folder, pages
from gpupool.node.sharing.slices.lease_folder import make_lease_folder, make_leases_folder, stale_folders
from requires import cc

HEADERS = Path(__file__).parents[2] / "native/include"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
GPUS = [
    pages.GpuPage(UUID, 5 << 30, 256 << 20, 250, ComputePolicy.CAP),
    pages.GpuPage("GPU-EMULATED-00000000-0000-0000-0000-000000000001", 1 << 30, 0, 1000, ComputePolicy.NONE),
]
READER = r"""
#include <stdio.h>
#include <string.h>
#include "gpupool/pages.h"
static unsigned char control[1 << 17], status[1 << 20];
int main(int n, char **files) {
    (void)n;
    size_t c = fread(control, 1, sizeof control, fopen(files[1], "r"));
    size_t s = fread(status, 1, sizeof status, fopen(files[2], "r"));
    struct gpupool_control_header *head = (void *)control;
    struct gpupool_control_gpu *gpu = (void *)(head + 1);
    struct gpupool_status_header *held = (void *)status;
    struct gpupool_status_gpu *used = (void *)(held + 1);
    printf("%d %zu %zu\n", head->magic == GPUPOOL_PAGES_MAGIC && held->magic == GPUPOOL_PAGES_MAGIC, c, s);
    printf("%u %u %u %s|%s|%s\n", head->abi, head->gpu_count, held->gpu_count, head->lease, head->cuda_driver,
           head->nvml_driver);
    for (int i = 0; i < 2; i++)
        printf("%02x%02x %s %lu %lu %u %u\n", gpu[i].uuid[0], gpu[i].uuid[15], gpu[i].uuid_text,
               gpu[i].memory_limit_bytes, gpu[i].context_bytes, gpu[i].weight_permille, gpu[i].policy);
    printf("%zu %zu\n", (size_t)((unsigned char *)&gpu[1].heartbeat - control),
           (size_t)((unsigned char *)used[1].slots - status));
    struct gpupool_slot *slot = &used[1].slots[3];
    slot->owner = gpupool_owner(4711, 123456);
    slot->pid_ns = 17;
    slot->host_pid = 815;
    slot->ledger = gpupool_word(gpupool_units(3 << 20), 3, 9);
    slot->context_bytes = 77;
    FILE *out = fopen(files[2], "w");
    return fwrite(status, 1, s, out) == s && fclose(out) == 0 ? 0 : 1;
}
"""


def a_lease(parent: Path) -> lease_folder.LeaseFolder:
    control = pages.control_pages("lease 7", "/lib/libcuda.so.1", "/lib/libnvidia-ml.so.1", GPUS)
    make_leases_folder(parent, shared=True)
    return make_lease_folder(parent, 7, control, 2, None)


def test_c_reads_what_python_writes_and_the_other_way_round(tmp_path: Path) -> None:
    lease = a_lease(tmp_path / "leases")
    (tmp_path / "reader.c").write_text(READER)
    program = tmp_path / "reader"
    cc(f"-I{HEADERS}", "-o", program, tmp_path / "reader.c")
    files = [lease.path / name for name in ("control", "status")]
    shown = subprocess.run([program, *files], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown == [
        f"1 {pages.control_size(2)} {pages.status_size(2)}",
        "1 2 2 lease 7|/lib/libcuda.so.1|/lib/libnvidia-ml.so.1",
        f"00ff {UUID} {5 << 30} {256 << 20} 250 2",
        f"0001 {GPUS[1].uuid} {1 << 30} 0 1000 0",
        f"{pages.heartbeat_offset(1)} {pages.slots_offset(1)}",
    ]
    (slot,) = lease.read_slots(1)
    assert (slot.pid, slot.start, slot.pid_ns, slot.host_pid) == (4711, 123456, 17, 815)
    assert (slot.ledger_bytes, slot.context_bytes) == (3 << 20, 77)
    assert lease.read_slots(0) == ()


def test_folder_is_complete_and_its_name_is_random(tmp_path: Path) -> None:
    parent = tmp_path / "leases"
    first, second = a_lease(parent), a_lease(parent)
    assert first.path != second.path
    assert first.sound()
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (parent, first.path, *sorted(first.path.iterdir()))]
    assert modes == [0o711, 0o711, 0o644, 0o600]
    assert list(stale_folders(parent, frozenset({first.path}))) == [second.path]


def test_full_disk_leaves_no_partial_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(lease_folder.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        a_lease(tmp_path / "leases")
    assert list((tmp_path / "leases").iterdir()) == []


def test_truncated_status_file_is_read_without_fault(tmp_path: Path) -> None:
    lease = a_lease(tmp_path / "leases")
    (lease.path / "status").write_bytes(b"")
    assert lease.read_slots(0) == ()
    assert not lease.sound()
    (lease.path / "status").unlink()
    (lease.path / "status").symlink_to("/proc/self/mem")
    assert lease.read_slots(0) == ()
    assert not lease.sound()


@pytest.mark.parametrize("uuid", ["MIG-GPU-1/2/3", "GPU-12", "nonsense", ""])
def test_invalid_uuid_is_refused(uuid: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        pages.uuid_bytes(uuid)
