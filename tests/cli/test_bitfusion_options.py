"""The filters and server lists of VMware Bitfusion become labels of nodes and models of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.cli.request.options import RUN, parse
from gpupool.cli.request.request_body import workload_body
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Node, NodeReport


def body(*words: str) -> dict[str, Any]:
    values, program = parse(RUN, [*words, "--", "true"])
    return workload_body(values, program)


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["--filter", "server.hostname=gpu1", "--filter", "server.hostname=gpu2"], {"node": "gpu1|gpu2"}),
        (["--filter", "server.addr=10.0.0.1"], {"address": "10.0.0.1"}),
        (
            ["--filter", "server.dirver-version=550.1", "--filter", "server.cuda-version=12.4"],
            {"driver": "550.1", "cuda": "12.4"},
        ),
        (["--filter", "server.has-rdma=true", "--filter", "rack=r1"], {"rdma": "true", "rack": "r1"}),
        (["--server_list", "10.0.0.1:56001;10.0.0.2"], {"address": "10.0.0.1|10.0.0.2"}),
        (["-l", "gpu1;gpu2:56001;"], {"node": "gpu1|gpu2"}),
        (["-l", "10.0.0.1"], {"address": "10.0.0.1"}),
    ],
)
def test_labels_of_nodes(words: list[str], labels: dict[str, str]) -> None:
    made = body(*words)
    assert made["gpus"]["labels"] == labels
    assert "labels" not in made


def test_models_and_labels_of_workloads() -> None:
    made = body("--filter", "device.name=T4", "--filter", "device.name=V100", "-l", "team=vision", "-l", "gpu1;gpu2")
    assert made["gpus"] == {"models": ["T4", "V100"], "labels": {"node": "gpu1|gpu2"}}
    assert made["labels"] == {"team": "vision"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--filter", "device.id=3"], "'device.id' is not a key"),
        (["--filter", "device.phy-memory=16384"], "'device.phy-memory' is not a key"),
        (["--server-list", "10.0.0.1;gpu2"], "is not a list of nodes"),
        (["--server-list", ";"], "is not a list of nodes"),
        (["-l", "team"], "'team' after --label is not KEY=VALUE"),
    ],
)
def test_refusals(words: list[str], message: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        body(*words)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert message in caught.value.message
    assert caught.value.hint


def test_own_labels_of_nodes_and_alternatives() -> None:
    report = NodeReport(
        name="gpu1",
        cpus=8,
        memory_mib=1024,
        gpus=(),
        emulated=False,
        boot_id="boot",
        agent_version="1",
        driver_version="550.1",
        cuda_version="12.4",
        labels={"rack": "r1"},
        address="10.0.0.1",
    )
    node = Node(report, labels={"cuda": "of the administrator"})
    for label, value in (
        ("node", "gpu1"),
        ("node", "gpu0|gpu1"),
        ("address", "10.0.0.1"),
        ("driver", "550.1"),
        ("rack", "r1"),
    ):
        assert node.has_label(label, value)
    for label, value in (("node", "gpu"), ("node", "gpu0|gpu2"), ("cuda", "12.4"), ("other", ""), ("rack", "")):
        assert not node.has_label(label, value)
