"""A node that cannot hold programs to slices: everything works, and the first commands say so with a remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from e2e_pool import RealPool, folder_for_pool

WHY = "there was no C compiler"
REMEDY = "Install a C compiler, then install gpupool again and restart the pool."


@pytest.fixture
def not_built() -> Iterator[RealPool]:
    """Return a pool that is not started yet, of an installation without native libraries."""
    with folder_for_pool() as folder:
        pool = RealPool(folder, "1xT4")
        native = folder / "native"
        native.mkdir()
        (native / "BUILD.json").write_text(json.dumps({"reason": WHY, "remedy": "Install a C compiler"}))
        pool.env["GPUPOOL_NATIVE"] = str(native)
        yield pool
        pool("down", "--stop-jobs", ok=False)


def test_starting_command_warns_of_unenforced_slices(not_built: RealPool) -> None:
    not_built.state.mkdir(mode=0o700)
    (not_built.state / "config.json").write_text(json.dumps({"emulate": "1xT4"}))
    done = not_built("run", "-p", "0.25", "--", "echo", "works")
    assert done.stdout == b"works\n"
    said = [line for line in done.stderr.decode().splitlines() if "not enforced" in line]
    assert len(said) == 1, done.stderr.decode()
    assert said[0].startswith(f"gpupool: {os.uname().nodename}: slices are not enforced: ")
    assert WHY in said[0]
    assert said[0].endswith(REMEDY)


def test_up_and_nodes_warn_of_unenforced_slices_unless_quiet_or_whole_gpus(not_built: RealPool) -> None:
    said = not_built.up().stderr.decode()
    assert f"warning: {os.uname().nodename}: slices are not enforced: " in said
    assert REMEDY in said
    assert "slices are not enforced" in not_built.text("nodes")
    assert not_built("run", "-q", "-p", "0.25", "--", "true").stderr == b""
    assert b"not enforced" not in not_built("run", "-g", "1", "--", "true").stderr
