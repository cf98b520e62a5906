"""MIG instances are separate GPUs for workloads that request them, and for no others."""

from dataclasses import replace

import pytest
from scheduling_world import World, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest
from gpupool.scheduling.scheduler import NodeChanged

A100 = "NVIDIA A100-SXM4-80GB"


def cut(w: World, name: str, **profiles_mib: int) -> None:
    """Divide the first GPU of a node into instances of these profiles (``m3g_40gb=40_000``)."""
    (row,) = [r for r, node in enumerate(w.scheduler.placer.cluster.nodes) if node and node.name == name]
    node = w.scheduler.placer.cluster.nodes[row]
    assert node is not None
    first, *others = node.report.gpus
    instances = [
        Gpu(f"MIG-{i}", 100 + i, f"{A100} MIG {profile[1:].replace('_', '.')}", mib, parent_uuid=first.uuid)
        for i, (profile, mib) in enumerate(profiles_mib.items())
    ]
    w.scheduler.apply(NodeChanged(replace(node, report=replace(node.report, gpus=(*others, *instances)))))


def placed(w: World) -> dict[str, list[str]]:
    return {
        str(grant.workload): [share.gpu_uuid for share in grant.shares] for grant in w.scheduler.decide(w.now).grants
    }


def test_plain_request_gets_whole_gpu_and_no_instance() -> None:
    w = world("a 2xA100", "p1 red 1; p2 red 0.5; p3 red 8000M; p4 red 1 model=3g.40gb; p5 red 1 model=mig")
    cut(w, "a", m3g_40gb=40_000, m2g_20gb=20_000)
    given = placed(w)
    assert given["p1"] == ["a-1"]
    assert "p2" not in given
    assert "p3" not in given
    assert (given["p4"], given["p5"]) == (["MIG-0"], ["MIG-1"])


def test_instance_is_granted_once_with_its_own_memory() -> None:
    w = world("a 1xA100", "p1 red 1 model=3g.40gb; p2 red 1 model=3g.40gb")
    cut(w, "a", m3g_40gb=40_000)
    (grant,) = w.scheduler.decide(w.now).grants
    (share,) = grant.shares
    assert (share.gpu_uuid, share.permille, share.memory_mib) == ("MIG-0", 1000, 40_000)


def test_plain_request_is_refused_with_advice_if_all_gpus_have_instances() -> None:
    w = world("a 1xA100")
    cut(w, "a", m3g_40gb=40_000)
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(GpuRequest(1))
    assert "MIG 3g.40gb" in refused.value.hint
    w.scheduler.check_possible(GpuRequest(1, models=("3g.40gb",)))
    with pytest.raises(GpupoolError):
        w.scheduler.check_possible(GpuRequest(1, models=("2g.20gb",)))


def test_request_for_missing_profile_says_who_can_create_it() -> None:
    w = world("a 1xA100", "p1 red 1 model=3g.40gb")
    cut(w, "a", m3g_40gb=40_000)
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(GpuRequest(1, models=("1g.10gb",)))
    assert refused.value.code is ErrorCode.UNKNOWN_MODEL
    assert "MIG 3g.40gb" in refused.value.hint
    assert "an administrator can: nvidia-smi mig -cgi PROFILE -C" in refused.value.hint
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(GpuRequest(1, models=("h100",)))
    assert "nvidia-smi" not in refused.value.hint


def test_why_says_who_can_create_instance_of_missing_profile() -> None:
    w = world("a 1xA100 mig=3g.40gb", "p1 red 1 model=1g.10gb")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now)
    assert found is not None
    assert found.would_help[-1].endswith("an administrator can: nvidia-smi mig -cgi PROFILE -C")
