"""The nodes that a pod may use: nodeSelector, nodeName and node affinity as labels and GPU models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.field_tables import ignored, rejected, supported
from gpupool.specs.kubernetes.reading import Fields, ManifestView

# Labels with which clusters name the GPU product of a node.
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
    "nodeAffinity": supported(),
    "podAffinity": ignored("members of a training job are always placed near each other"),
    "podAntiAffinity": ignored("the pool places workloads to limit fragmentation; see placement"),
}
NODE_AFFINITY: Fields = {
    "requiredDuringSchedulingIgnoredDuringExecution": supported("one term: In with one label value or GPU products"),
    "preferredDuringSchedulingIgnoredDuringExecution": ignored("only required affinity applies"),
}
TERMS: Fields = {"nodeSelectorTerms": supported()}
TERM: Fields = {
    "matchExpressions": supported(),
    "matchFields": rejected("nodes are selected by labels.", "Use nodeSelector."),
}
EXPRESSION: Fields = {"key": supported(), "operator": supported(), "values": supported()}


@dataclass(slots=True)
class Places:
    """Labels that the node must have, and accepted GPU models."""

    labels: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)


def places_of(pod: ManifestView) -> Places:
    """Return where a pod may run; record conditions that the pool does not support as faults."""
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
    """Return a GPU product's label as a model: ``Tesla-V100-SXM2-16GB`` and ``nvidia-tesla-t4`` as users name them."""
    text = product.removesuffix("-SHARED")
    lowered = text.lower()
    for maker in _MAKERS:
        if lowered.startswith(maker) and len(lowered) > len(maker):
            text, lowered = text[len(maker) :], lowered[len(maker) :]
    return text


def _add(found: Places, key: str, values: Iterable[str]) -> None:
    """Add one value that a label must have, or several accepted products."""
    wanted = list(values)
    if key in PRODUCT:
        found.models += [model_of(value) for value in wanted]
    elif (key, wanted[0]) not in _HOLDS_EVERYWHERE:
        found.labels[NODE if key == HOST else POOL if key in POOLS else key] = wanted[0]


def _affinity(found: Places, affinity: ManifestView) -> None:
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
        _unfit(terms[1], "only one term is supported.")
    for term in terms[:1]:
        term.check(TERM)
        for expression in term.each("matchExpressions"):
            _expression(found, expression)


def _expression(found: Places, expression: ManifestView) -> None:
    expression.check(EXPRESSION)
    key, operator, values = expression.text("key"), expression.text("operator"), expression.texts("values")
    if operator != "In" or not values or not key:
        _unfit(expression, "only the operator In with values is supported.")
    elif len(values) > 1 and key not in PRODUCT:
        _unfit(expression, "a label can have only one value; GPU products can have several.")
    else:
        _add(found, key, values)


def _unfit(view: ManifestView, why: str) -> None:
    view.refuse(f"is not supported: {why}", "Use nodeSelector, or set labels on the nodes.", ErrorCode.UNSUPPORTED)
