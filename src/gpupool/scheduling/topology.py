"""Which nodes are near each other: those that share the value of a label."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from gpupool.scheduling.claims import Ints
from gpupool.scheduling.cluster import ClusterState

NODE = "node"  # the label of which every node has a value of its own
ALONE = -1  # the domain of a node that has no value
_known: WeakKeyDictionary[ClusterState, dict[str, tuple[int, Ints]]] = WeakKeyDictionary()


def domains(cluster: ClusterState, label: str) -> Ints:
    """For each row the number of its domain: equal for nodes with the same value of ``label``; ``ALONE`` without one.

    Without a label all nodes are one domain. Numbers follow the order of the values.
    """
    cached = _known.setdefault(cluster, {})
    if label not in cached or cached[label][0] != cluster.generation:
        if len(cached) >= 64:  # labels come from requests
            cached.clear()
        cached[label] = (cluster.generation, _number(cluster, label))
    return cached[label][1]


def _number(cluster: ClusterState, label: str) -> Ints:
    rows = len(cluster.present)
    if not label:
        return np.zeros(rows, np.int64)
    values = [_value(cluster, row, label) for row in range(rows)]
    order = {value: number for number, value in enumerate(sorted({v for v in values if v is not None}))}
    return np.array([ALONE if value is None else order[value] for value in values], np.int64)


def _value(cluster: ClusterState, row: int, label: str) -> str | None:
    node = cluster.nodes[row] if row < len(cluster.nodes) else None  # rows beyond are spare
    if node is None:
        return None
    return node.all_labels.get(label, node.name if label == NODE else None)
