"""GPUs in manifests: whole ones by resource, shares by the annotations of KAI and Run:ai or HAMi's resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.domain.nodes.gpu import NODE_LABEL
from gpupool.domain.nodes.sharing import TRAITS, traits_of
from gpupool.specs.kubernetes.kinds import ACCESS_NOTE, HOSTS_NOTE, MODEL_NOTE, REPLICAS_NOTE
from gpupool.specs.kubernetes.pods.amounts import amount, whole
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.limits import MAX_GPUS

Values = dict[str, Any]
Views = Mapping[str, ManifestView]

COUNT = ("nvidia.com/gpu", "hami.io/gpu", "alpha.kubernetes.io/nvidia-gpu")
MIG = "nvidia.com/mig-"
MEMORY = ("nvidia.com/gpumem", "hami.io/gpumem")
PERCENT = ("nvidia.com/gpumem-percentage", "hami.io/gpumem-percentage")
CORES = ("nvidia.com/gpucores", "hami.io/gpucores")
URGENCY = "nvidia.com/priority"
FRACTION, FRACTION_MEMORY = "gpu-fraction", "gpu-memory"
DEVICES, FOR_CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
USE_TYPE, USE_NO_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, USE_NO_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
MODE = "nvidia.com/vgpu-mode"
GPU_POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"

_MODES = {traits.vgpu_mode: str(mode) for mode, traits in TRAITS.items() if traits.vgpu_mode}
_POLICIES = {"binpack": "pack", "spread": "spread"}
_KNOWN = {
    FRACTION, FRACTION_MEMORY, DEVICES, FOR_CONTAINER, USE_TYPE, USE_NO_TYPE, USE_UUID, USE_NO_UUID, MODE,
    GPU_POLICY, NODE_POLICY,
}  # fmt: skip
_OWN = {"gpupool/run-as", "gpupool/container", ACCESS_NOTE, MODEL_NOTE, HOSTS_NOTE, REPLICAS_NOTE}
_REQUIRED, _PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
_SLICE_REQUIRED = "kueue.x-k8s.io/podset-slice-required-topology"
_HOST = "kubernetes.io/hostname"
# Notes of people and of tools that write or watch manifests: they request nothing.
_NO_REQUEST = (
    "app.kubernetes.io/", "argocd.argoproj.io/", "deployment.kubernetes.io/", "fluxcd.io/", "kubectl.kubernetes.io/",
    "kubernetes.io/description", "meta.helm.sh/", "helm.sh/", "prometheus.io/", "checksum/", "batch.kubernetes.io/",
)  # fmt: skip


@dataclass(slots=True)
class _Asked:
    """The GPU request so far."""

    count: int | None = None
    fraction: Decimal | None = None
    memory_mib: int | None = None
    models: list[str] = field(default_factory=list)
    more: Values = field(default_factory=dict)

    def body(self) -> Values:
        """Return the field ``gpus`` of a request."""
        if not self.count:
            return {"count": 0}
        body: Values = {"count": self.count, **self.more}
        if self.memory_mib is not None:
            body["memory_mib"] = self.memory_mib
        elif self.fraction is not None and self.fraction != 1:
            body["fraction"] = float(self.fraction)
        return body | ({"models": self.models} if self.models else {})


def gpu_body(resources: Views, annotations: Views) -> Values:
    """Return the field ``gpus`` of a request from a container's resources and its pod's annotations; record faults."""
    asked = _Asked()
    _count(asked, resources)
    _hami(asked, resources)
    _fraction(asked, annotations)
    _choices(asked, annotations)
    _check_others(annotations)
    return asked.body()


def _check_others(annotations: Views) -> None:
    """Refuse or warn about annotations that request something the pool does not support."""
    for key, value in annotations.items():
        if key == _SLICE_REQUIRED:
            hint = f"Use {_REQUIRED}: all members are then in one domain."
            value.refuse("is not supported: a gang cannot be split into slices.", hint, ErrorCode.UNSUPPORTED)
        elif key in {_REQUIRED, _PREFERRED} | _KNOWN | _OWN or key.startswith(_NO_REQUEST):
            continue
        elif "/" in key or key.startswith("gpu-"):  # without a domain it is a note of its author
            value.warn(ManifestNotice.ANNOTATION_IGNORED, "is ignored.")


@dataclass(frozen=True, slots=True)
class TopologyNote:
    """Kueue's annotation for the placement of the members of a job: a node label, required or preferred."""

    label: str
    strict: bool
    view: ManifestView

    def body(self) -> Values:
        """Return the fields of a gang."""
        return {"within": NODE_LABEL if self.label == _HOST else self.label} | ({"strict": True} if self.strict else {})

    def refuse_alone(self) -> None:
        """Report the annotation on work that is no gang."""
        if self.strict:
            hint = "Remove it, or use a kind whose pods start together, such as PyTorchJob."
            self.view.refuse("is for jobs whose pods start together.", hint, ErrorCode.UNSUPPORTED)
        else:
            self.view.warn(ManifestNotice.ANNOTATION_IGNORED, "is ignored: it is for jobs whose pods start together.")


def topology_note(annotations: Views) -> TopologyNote | None:
    """Return the required topology of a pod, else the preferred one."""
    for key, strict in ((_REQUIRED, True), (_PREFERRED, False)):
        if key in annotations:
            return TopologyNote(annotations[key].scalar(), strict, annotations[key])
    return None


def speaks_of_gpus(resource: str) -> bool:
    """Return whether a resource is read by this module."""
    return resource.startswith(MIG) or resource in {*COUNT, *MEMORY, *PERCENT, *CORES, URGENCY, "nvidia.com/gpu.shared"}


def _count(asked: _Asked, resources: Views) -> None:
    for name, value in resources.items():
        if name in COUNT:
            number = amount(value)
            if number is not None and 0 < number < 1:
                asked.count, asked.fraction = 1, number
            else:
                asked.count = whole(value, MAX_GPUS)
        elif name.startswith(MIG):
            asked.count = whole(value, MAX_GPUS)
            asked.models.append(name.removeprefix(MIG).replace(".me", ""))
        elif name == "nvidia.com/gpu.shared":
            value.refuse(
                "does not specify a share of the GPU.",
                'Write nvidia.com/gpu: 1 and the annotation gpu-fraction: "0.5".',
                ErrorCode.UNSUPPORTED,
            )


def _first(resources: Views, names: tuple[str, ...]) -> ManifestView | None:
    return next((resources[name] for name in names if name in resources), None)


def _hami(asked: _Asked, resources: Views) -> None:
    memory, percent, cores = (_first(resources, names) for names in (MEMORY, PERCENT, CORES))
    part = memory or percent
    if part is not None and not asked.count:
        asked.count = 1  # as HAMi does
    if memory is not None:
        asked.memory_mib = whole(memory, 2**30) or None
    elif percent is not None:
        asked.fraction = _percentage(percent)
    if cores is not None:
        _compute(asked, cores)
    if URGENCY in resources:
        resources[URGENCY].warn(ManifestNotice.LIMIT_IGNORED, "is ignored: a slice has its share of the GPU time.")


def _percentage(value: ManifestView) -> Decimal | None:
    number = whole(value, 10**6)
    if number is None or not 1 <= number <= 100:
        value.refuse("must be a percentage from 1 to 100.", code=ErrorCode.INVALID_FRACTION)
        return None
    return Decimal(number) / 100


def _compute(asked: _Asked, cores: ManifestView) -> None:
    """Check HAMi's compute limit: HAMi limits memory and time separately, here a share is both."""
    share = _percentage(cores)
    if share is None or (share == 1 and asked.memory_mib is None and asked.fraction in {None, Decimal(1)}):
        return
    if asked.memory_mib is None and asked.fraction == share:
        asked.more["compute"] = "cap"
        return
    said = "its share of memory is also its share of time"
    cores.warn(ManifestNotice.COMPUTE_FOLLOWS_MEMORY, f"is ignored: {said}.")


def _fraction(asked: _Asked, annotations: Views) -> None:
    part = annotations.get(FRACTION) or annotations.get(FRACTION_MEMORY)
    devices = annotations.get(DEVICES)
    if part is None:
        if devices is not None:
            devices.refuse("needs gpu-fraction or gpu-memory.")
        return
    if FRACTION in annotations and FRACTION_MEMORY in annotations:
        annotations[FRACTION_MEMORY].refuse("and gpu-fraction exclude each other.")
    if asked.count:
        part.refuse("and GPUs among the resources exclude each other.", "Keep one of them.")
        return
    asked.count = 1 if devices is None else whole(devices, MAX_GPUS)
    if part is annotations.get(FRACTION_MEMORY):
        asked.memory_mib = whole(part, 2**30) or None
        return
    asked.fraction = amount(part)
    if asked.fraction is not None and not Decimal("0.001") <= asked.fraction <= 1:
        part.refuse("must be a part of a GPU, above 0 and up to 1.", code=ErrorCode.INVALID_FRACTION)
        asked.fraction = None
    elif asked.fraction is not None and asked.fraction * 1000 % 1:
        part.refuse("must be a multiple of 0.001.", code=ErrorCode.INVALID_FRACTION)
        asked.fraction = None


def _choices(asked: _Asked, annotations: Views) -> None:
    if USE_TYPE in annotations:
        asked.models += [model.strip() for model in annotations[USE_TYPE].scalar().split(",") if model.strip()]
    for key in (USE_NO_TYPE, USE_UUID, USE_NO_UUID):
        if key in annotations:
            hint = "Name accepted models in nvidia.com/use-gputype, or labels of nodes in nodeSelector."
            annotations[key].refuse("is not supported: GPUs are selected by model.", hint, ErrorCode.UNSUPPORTED)
    if MODE in annotations:
        _mode(asked, annotations[MODE])
    _placement(asked, annotations)


def _mode(asked: _Asked, value: ManifestView) -> None:
    mode = value.scalar()
    known = _MODES.get(mode, "")
    if known and traits_of(known).partitioned:
        value.refuse(
            "is not supported: it does not name the profile of the MIG instance.",
            "Request it by its profile: resources: {limits: {nvidia.com/mig-2g.10gb: 1}}.",
            ErrorCode.UNSUPPORTED,
        )
    elif not known:
        value.refuse(f"must be one of {', '.join(_MODES)}.")
    elif asked.count and (asked.memory_mib or asked.fraction):
        asked.more["sharing"] = known


def _placement(asked: _Asked, annotations: Views) -> None:
    wanted = {key: annotations[key].scalar() for key in (GPU_POLICY, NODE_POLICY) if key in annotations}
    for key, policy in list(wanted.items()):
        if policy not in _POLICIES:
            annotations[key].refuse(f"must be one of {', '.join(_POLICIES)}.")
            del wanted[key]
    if len(set(wanted.values())) > 1:
        annotations[NODE_POLICY].warn(
            ManifestNotice.ANNOTATION_IGNORED, "is ignored: the placement of the GPU applies to nodes too."
        )
    if wanted:
        asked.more["placement"] = _POLICIES[wanted.get(GPU_POLICY) or wanted[NODE_POLICY]]
