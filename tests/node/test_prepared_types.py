"""The fork server: what it loads before it forks."""

from __future__ import annotations

import json
import subprocess
import sys

from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec

SCRIPT = """\
import json, sys
from gpupool.domain import decode
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node import spawner
spawner.load_before_forks()
before = decode._converters.cache_info().misses
decode.decode(ProcessSpec, json.load(sys.stdin))
print(decode._converters.cache_info().misses - before)
"""


def test_request_of_a_shepherd_is_read_with_prepared_types() -> None:
    spec = ProcessSpec("w.0.1", 1, ("true",), {}, "/", gpus=(GpuShare("GPU-1", 0, 500, 1024),)).to_dict()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(spec), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0\n", done.stderr
