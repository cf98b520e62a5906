"""Which nodes a pod may go to: nodeSelector, nodeName and node affinity as labels and GPU models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.reading import Fields, View
from gpupool.specs.kubernetes.tables import honoured, refused, warned

# Labels by which clusters name the product of a node's GPUs.
PRODUCT = {
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "accelerator",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "k8s.amazonaws.com/accelerator",
    "run.ai/type",
}
HOST = "kubernetes.io/hostname"
NODE = "node"  # the label that every node has: its name
POOLS = {"run.ai/node-pool", "runai/node-pool", "kai.scheduler/node-pool", "cloud.google.com/gke-nodepool"}
POOL = "pool"
_HOLDS_EVERYWHERE = {("kubernetes.io/os", "linux"), ("nvidia.com/gpu.present", "true")}
_MAKERS = ("nvidia-", "tesla-", "nvidia ", "tesla ")

AFFINITY: Fields = {
    "nodeAffinity": honoured(),
    "podAffinity": warned("members of a training job are placed near each other anyway"),
    "podAntiAffinity": warned("the pool places by what stays of use; see placement"),
}
NODE_AFFINITY: Fields = {
    "requiredDuringSchedulingIgnoredDuringExecution": honoured("one term, of In with one label value or GPU products"),
    "preferredDuringSchedulingIgnoredDuringExecution": warned("only what is required counts"),
}
TERMS: Fields = {"nodeSelectorTerms": honoured()}
TERM: Fields = {
    "matchExpressions": honoured(),
    "matchFields": refused("nodes are chosen by labels.", "Use nodeSelector."),
}
EXPRESSION: Fields = {"key": honoured(), "operator": honoured(), "values": honoured()}


@dataclass(slots=True)
class Places:
    """Labels that the node must have, and GPU models that will do."""

    labels: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)


def places_of(pod: View) -> Places:
    """Where a pod may run, as its spec says; what the pool cannot choose by is noted as a fault."""
    found = Places()
    for key, value in pod.pairs("nodeSelector").items():
        _add(found, key, [value.scalar()])
    name = pod.text("nodeName")
    if name:
        found.labels[NODE] = name
    affinity = pod.get("affinity")
    if affinity is not None:
        affinity.check(AFFINITY)
        _affinity(found, affinity)
    return found


def model_of(product: str) -> str:
    """A GPU product's label as a model: ``Tesla-V100-SXM2-16GB`` and ``nvidia-tesla-t4`` as people name them."""
    text = product.removesuffix("-SHARED")
    lowered = text.lower()
    for maker in _MAKERS:
        if lowered.startswith(maker) and len(lowered) > len(maker):
            text, lowered = text[len(maker) :], lowered[len(maker) :]
    return text


def _add(found: Places, key: str, values: Iterable[str]) -> None:
    """One value that a label must have, or several products that will do."""
    wanted = list(values)
    if key in PRODUCT:
        found.models += [model_of(value) for value in wanted]
    elif (key, wanted[0]) not in _HOLDS_EVERYWHERE:
        found.labels[NODE if key == HOST else POOL if key in POOLS else key] = wanted[0]


def _affinity(found: Places, affinity: View) -> None:
    node = affinity.get("nodeAffinity")
    if node is None:
        return
    node.check(NODE_AFFINITY)
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return
    required.check(TERMS)
    terms = required.each("nodeSelectorTerms")
    if len(terms) > 1:
        _unfit(terms[1], "one of several terms cannot be chosen by.")
    for term in terms[:1]:
        term.check(TERM)
        for expression in term.each("matchExpressions"):
            _expression(found, expression)


def _expression(found: Places, expression: View) -> None:
    expression.check(EXPRESSION)
    key, operator, values = expression.text("key"), expression.text("operator"), expression.texts("values")
    if operator != "In" or not values or not key:
        _unfit(expression, "only In, with values, can be chosen by.")
    elif len(values) > 1 and key not in PRODUCT:
        _unfit(expression, "a label can have one value only; several are possible for GPU products.")
    else:
        _add(found, key, values)


def _unfit(view: View, why: str) -> None:
    view.refuse(
        f"cannot be honoured: {why}", "Use nodeSelector, or label the nodes as you need it.", ErrorCode.UNSUPPORTED
    )
