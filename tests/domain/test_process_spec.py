"""A process is described in the same JSON values as by ``dataclasses.asdict``, and is rebuilt from them."""

from __future__ import annotations

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.decode import decode
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.file_tree import FilesSpec
from gpupool.domain.work.program.supervision import ProcessSpec

PLAIN = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=2))
SPECS = st.builds(
    ProcessSpec,
    gpus=st.lists(st.builds(GpuShare), max_size=2).map(tuple),
    container=st.none() | st.builds(ContainerSpec),
    files=st.none() | st.builds(FilesSpec),
    record=st.dictionaries(st.text(), PLAIN, max_size=3),
)


@given(SPECS)
def test_process_has_the_values_of_its_fields(spec: ProcessSpec) -> None:
    values = json.loads(json.dumps(spec.to_dict()))
    assert values == json.loads(json.dumps(asdict(spec)))
    assert decode(ProcessSpec, values) == spec
