"""The formats of clusters: words like ``4x8xA100``, and tables of nodes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, Node, NodeReport
from gpupool.simulate.rows import Row, header_of, rows

MAX_NODES = 100_000
MAX_GPUS_PER_NODE = 64
OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
FLAT = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")
PLENTY_CPUS = 100_000.0  # of a node without further data: only its GPUs matter
PLENTY_MIB = 1_000_000_000
USUAL_GPU_MIB = 24_576
GPU_MIB = {
    "P100": 16_384,
    "V100M16": 16_384,
    "V100M32": 32_768,
    "V100": 16_384,
    "T4": 15_360,
    "A10": 23_028,
    "A100": 81_920,
    "A800": 81_920,
    "H100": 81_559,
    "H800": 81_559,
    "H200": 143_771,
}
_WORD = re.compile(r"(\d{1,6})\s?x\s?(\d{1,2})\s?x\s?([A-Za-z0-9][A-Za-z0-9 ._-]{0,60})")


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Parse nodes from words: ``4x8xA100`` is four nodes of eight A100; commas join. Raises ``GpupoolError``."""
    nodes: list[Node] = []
    for word in text.split(","):
        found = _WORD.fullmatch(word.strip())
        if found is None or not int(found[1]) or not 1 <= int(found[2]) <= MAX_GPUS_PER_NODE:
            hint = "Write NODESxGPUSxMODEL, such as 4x8xA100 or 4x8xA100,16x2xT4."
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{word.strip()[:40]}' is not a number of nodes.", hint)
        _bound(len(nodes) + int(found[1]))
        nodes += [_node(f"node{len(nodes) + i:05}", int(found[2]), found[3]) for i in range(int(found[1]))]
    return tuple(nodes)


def parse_nodes(lines: Sequence[str]) -> tuple[Node, ...]:
    """Parse a table: ``sn,cpu_milli,memory_mib,gpu,model`` or ``gpu_model,gpu_capacity_num,cpu_num,node_name``.

    Raises ``GpupoolError``.
    """
    flat = set(FLAT) <= set(header_of(lines[0].strip() if lines else ""))
    table = rows(lines, FLAT if flat else OPENB, MAX_NODES)
    nodes = [node for node in map(_flat if flat else _openb, table) if node.report.gpus]
    names = {node.name for node in nodes}
    if not nodes or len(names) < len(nodes):
        what = "has no node with a GPU" if not nodes else "contains a node twice"
        raise GpupoolError(ErrorCode.INVALID_FILE, f"The file of nodes {what}.", "Use another file.")
    return tuple(nodes)


def permuted(nodes: Iterable[Node], seed: int) -> tuple[Node, ...]:
    """Return the same machines in another order and under other names, so that results depend on neither."""
    found = list(nodes)
    random.Random(seed).shuffle(found)  # noqa: S311 - an order, no secret
    return tuple(replace(node, report=replace(node.report, name=f"node{place:06}")) for place, node in enumerate(found))


def _bound(nodes: int) -> None:
    if nodes > MAX_NODES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MAX_NODES:,} nodes.", "Simulate a smaller cluster.")


def _openb(row: Row) -> Node:
    cpus = row.whole("cpu_milli") / 1000
    gpus = row.whole("gpu", most=MAX_GPUS_PER_NODE)
    return _node(row.text("sn"), gpus, row.text("model", "GPU"), cpus, row.whole("memory_mib"))


def _flat(row: Row) -> Node:
    gpus = row.whole("gpu_capacity_num", most=MAX_GPUS_PER_NODE)
    return _node(f"node-{row.text('node_name')}", gpus, row.text("gpu_model", "GPU"), row.number("cpu_num"))


def _node(name: str, gpus: int, model: str, cpus: float = PLENTY_CPUS, memory_mib: int = PLENTY_MIB) -> Node:
    mib = GPU_MIB.get(model, USUAL_GPU_MIB)
    cards = tuple(Gpu(f"{name}/{index}", index, model, mib, emulated=True) for index in range(gpus))
    return Node(NodeReport(name, cpus, memory_mib, cards, emulated=True, boot_id="", agent_version=""))
