"""The MIG mode: whole instances, shown by their UUIDs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.ports import NodeProgram, PreparedShare, SharingHost
from gpupool.node.sharing.mig import SEVERAL_NOTE, MigSharing
from gpupool.node.sharing.variables import holds_instances

ONE = GpuShare("MIG-1", 100, 1000, 40960)
TWO = GpuShare("MIG-2", 101, 1000, 20480)
PART = GpuShare("MIG-1", 100, 500, 20480)
CARD = GpuShare("GPU-a", 1, 1000, 81920)


def prepared(folder: Path, *gpus: GpuShare) -> PreparedShare:
    inventory: Any = None
    mode = MigSharing(
        SharingHost(folder, inventory, shared=False, note=lambda *_: None, end_reason=lambda *_: None, store=folder)
    )
    return asyncio.run(
        mode.prepare(NodeProgram(ProcessSpec("w0000000001.0.0", 1, ("true",), {}, "/", gpus=gpus), {}, folder))
    )


def test_mig_instance_is_visible_by_uuid_and_guaranteed_by_hardware(tmp_path: Path) -> None:
    made = prepared(tmp_path, ONE)
    assert (made.mode, made.env["CUDA_VISIBLE_DEVICES"], made.notes) == ("mig", "MIG-1", ())
    assert made.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    assert "LD_PRELOAD" not in made.env
    assert "hardware" in made.guarantee


def test_several_instances_are_shown_with_a_word_of_warning(tmp_path: Path) -> None:
    made = prepared(tmp_path, ONE, TWO)
    assert (made.env["CUDA_VISIBLE_DEVICES"], made.notes) == ("MIG-1,MIG-2", (SEVERAL_NOTE,))


@pytest.mark.parametrize("gpus", [(CARD,), (PART,), (ONE, CARD)])
def test_anything_but_whole_instances_is_refused(tmp_path: Path, gpus: tuple[GpuShare, ...]) -> None:
    assert not holds_instances(ProcessSpec("w0000000001.0.0", 1, ("true",), {}, "/", gpus=gpus))
    with pytest.raises(GpupoolError) as refused:
        prepared(tmp_path, *gpus)
    assert refused.value.code is ErrorCode.UNSUPPORTED
