"""First calls from many threads at once, and forks in the middle of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from lease_folder import LeasedGpu, LeaseFolder
from native_harness import PROGRAMS, build_native, clean_environment, compile_program
from standin import build_standin


@pytest.mark.parametrize(("what", "sanitize"), [("threads", "thread"), ("threads", ""), ("forks", "")])
def test_first_calls_may_race(what: str, sanitize: str, native_out: Path, tmp_path: Path) -> None:
    out = build_native(sanitize) if sanitize else native_out
    options = [f"-fsanitize={sanitize}"] if sanitize else []
    library = out / "share/libcuda.so.1"
    program = compile_program(PROGRAMS / "first_calls.c", tmp_path, *options, str(library))
    with LeaseFolder(tmp_path / "lease", [LeasedGpu(bytes(15) + b"\1", 1 << 30)], build_standin(tmp_path)) as lease:
        environment = clean_environment() | {
            "GPUPOOL_LEASE_DIR": str(lease.path),
            "LD_LIBRARY_PATH": str(library.parent),
        }
        for _ in range(1 if sanitize else 3):
            ran = subprocess.run(
                [str(program), what], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert ran.returncode == 0, ran.stderr[:4000]
            taken = lease.owners()
            assert len(taken) == (1 if what == "threads" else 41)
            for index in taken.values():
                lease.set_slot(index, "owner", 0)
