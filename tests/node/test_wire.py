"""Messages between control plane and agent survive JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.decode import decode
from gpupool.domain.nodes.gpu import ForeignProcess, Gpu, GpuHealth, NodeReport
from gpupool.domain.protocol import node_json

text = st.text(max_size=10)
number = st.integers(0, 1 << 40)
gpus = st.builds(
    Gpu,
    uuid=text,
    index=number,
    model=text,
    memory_mib=number,
    emulated=st.booleans(),
    health=st.sampled_from(GpuHealth),
    links=st.dictionaries(number, text, max_size=3),
    mig_profile=text,
    parent_uuid=text,
    foreign=st.lists(st.builds(ForeignProcess, number, text, text, number), max_size=2).map(tuple),
)
reports = st.builds(
    NodeReport,
    name=text,
    cpus=st.floats(0, 1000),
    memory_mib=number,
    gpus=st.lists(gpus, max_size=3).map(tuple),
    emulated=st.booleans(),
    boot_id=text,
    agent_version=text,
    labels=st.dictionaries(text, text, max_size=2),
    warnings=st.lists(text, max_size=2).map(tuple),
)


@given(reports)
def test_reports_survive_json(report: NodeReport) -> None:
    data = json.loads(json.dumps(node_json.report_to_dict(report)))
    assert decode(NodeReport, data) == report
    data["new"] = data["gpus"] and data["gpus"][0].setdefault("newer", 1)
    assert decode(NodeReport, data) == report
