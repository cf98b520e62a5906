"""What a request says of a container: the image's name, volumes as text or in full, and what they become."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpupool.domain.container import ContainerNetwork, ContainerSpec, PullPolicy, Volume, VolumeKind
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.images import check_image
from gpupool.domain.workload import WorkloadKind
from gpupool.specs import limits, quantities
from gpupool.specs.problems import refusal, reworded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupool.specs.models import RoleSpec, WorkloadRequest

MAX_VOLUMES = 64
MAX_USER = 64
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_RESERVED = ("/proc", "/sys", "/dev", "/run/gpupool")  # inside: the container's own
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place inside the container
_NEEDS_IMAGE = ("volumes", "pull", "entrypoint", "container_user", "network", "read_only", "shm")


def _image(value: object) -> object:
    if isinstance(value, str):
        try:
            check_image(value)
        except GpupoolError as error:
            raise reworded(error) from error
    return value


def _user(value: object) -> object:
    if isinstance(value, str) and (len(value) > MAX_USER or not _USER.fullmatch(value)):
        raise refusal(ErrorCode.INVALID_NAME, "is no user: write 1000, 1000:1000 or a name.")
    return value


Image = Annotated[str, BeforeValidator(_image), Field(min_length=1, max_length=512)]
ContainerUser = Annotated[str, BeforeValidator(_user), Field(min_length=1, max_length=MAX_USER)]


class VolumeSpec(BaseModel):
    """A folder or file that is seen inside; SRC:DST and SRC:DST:ro as text are the same for one of the node."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    target: Annotated[str, Field(min_length=2, max_length=limits.MAX_PATH)]
    """Where it is seen inside: a whole path."""
    source: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """The folder or file on the node: a whole path. For kind host only."""
    kind: Annotated[VolumeKind, Field(strict=False)] = VolumeKind.HOST
    """host; empty (a folder of its own that goes with it); or memory (the same in memory)."""
    read_only: bool = False
    """Nothing can be written there."""
    size: quantities.Size = None
    """The most that a volume in memory holds: MiB, or text such as 4G."""


def _volume(value: object) -> object:
    spec = _from_text(value) if isinstance(value, str) else value
    if isinstance(spec, dict):
        _check_volume(spec)
    return spec


def _from_text(text: str) -> dict[str, Any]:
    """``SRC:DST[:ro|rw]``."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in {"", "ro", "rw"} or rest.endswith(":"):
        raise refusal(ErrorCode.INVALID_REQUEST, f"'{text[:80]}' is no volume.", "Write /data:/data or /data:/data:ro.")
    return {"source": source, "target": target, "read_only": mode == "ro"}


def _check_volume(spec: dict[str, Any]) -> None:
    host = spec.get("kind", VolumeKind.HOST) == VolumeKind.HOST
    for name, place in (("source", spec.get("source", "")), ("target", spec.get("target"))):
        if name == "source" and not host:
            continue
        if isinstance(place, str):
            _check_place(name, place)
    if not host and spec.get("source"):
        raise refusal(ErrorCode.INVALID_REQUEST, "must be left out: only the kind host has one.", path=("source",))
    if spec.get("size") is not None and spec.get("kind") != VolumeKind.MEMORY:
        raise refusal(ErrorCode.INVALID_REQUEST, "is for the kind memory only.", path=("size",))


def _check_place(name: str, place: str) -> None:
    if not place.startswith("/") or any(c in place for c in "\0\n\r:,"):
        raise refusal(
            ErrorCode.INVALID_REQUEST,
            f"'{place[:80]}' must be a whole path from /, without ':' and ','.",
            "For example /data.",
            (name,),
        )
    if name == "target":
        _check_target(posixpath.normpath(place))


def _check_target(target: str) -> None:
    if target == _SHARED_MEMORY:
        return
    taken = next((r for r in _RESERVED if target == r or target.startswith(f"{r}/")), None)
    if taken or target in {"/", "//"}:
        sentence = f"cannot be {target[:80]}: that is the container's own."
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, "Mount it elsewhere.", ("target",))


VolumeField = Annotated[VolumeSpec, BeforeValidator(_volume, json_schema_input_type=str | VolumeSpec)]


def check_container(request: WorkloadRequest) -> None:
    """Raise pydantic's custom error for fields of a container that contradict each other or the kind."""
    some = request.image is not None or any(role.image is not None for role in request.roles)
    for number, role in enumerate(request.roles):
        for name in ("volumes", "entrypoint"):
            if getattr(role, name) is not None and request.image is None and role.image is None:
                raise refusal(ErrorCode.INVALID_REQUEST, "needs an image.", "Add image.", ("roles", number, name))
    if not some:
        default = type(request).model_fields
        for name in _NEEDS_IMAGE:
            if getattr(request, name) != default[name].get_default(call_default_factory=True):
                raise refusal(ErrorCode.INVALID_REQUEST, "needs an image.", "Add image (-i).", (name,))
        return
    if request.kind is WorkloadKind.LEASE:
        raise refusal(ErrorCode.INVALID_REQUEST, "must be left out: a lease runs nothing by itself.", path=("image",))
    if request.kind is WorkloadKind.EXEC:
        sentence = "must be left out: it runs where the workload runs."
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, path=("image",))
    targets = [posixpath.normpath(volume.target) for volume in request.volumes]
    if len(set(targets)) < len(targets):
        raise refusal(ErrorCode.INVALID_REQUEST, "has two volumes at the same place.", path=("volumes",))


def container_of(request: WorkloadRequest) -> ContainerSpec | None:
    """The container that a checked request asks for; None without an image."""
    if request.image is None:
        return None
    return _container(request, request.image, request.volumes, request.entrypoint)


def container_of_role(request: WorkloadRequest, role: RoleSpec) -> ContainerSpec | None:
    """The container of its own that a role asks for; None: it has that of the request, or none."""
    image = role.image or request.image
    if image is None or (role.image, role.volumes, role.entrypoint) == (None, None, None):
        return None
    volumes = request.volumes if role.volumes is None else role.volumes
    return _container(request, image, volumes, request.entrypoint if role.entrypoint is None else role.entrypoint)


def _container(
    request: WorkloadRequest, image: str, volumes: Sequence[VolumeSpec], entrypoint: Sequence[str] | None
) -> ContainerSpec:
    return ContainerSpec(
        image=image,
        pull=request.pull or PullPolicy.MISSING,
        volumes=tuple(volume_of(volume) for volume in volumes),
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        user=request.container_user or "",
        network=request.network or ContainerNetwork.HOST,
        read_only=request.read_only,
        shm_mib=request.shm,
    )


def volume_of(spec: VolumeSpec) -> Volume:
    """The same for the domain."""
    source = posixpath.normpath(spec.source) if spec.source else ""
    return Volume(posixpath.normpath(spec.target), source, spec.kind, spec.read_only, spec.size)


def container_body(container: ContainerSpec | None) -> dict[str, Any]:
    """The fields of a request that ask for a container, without what is left at its default."""
    if container is None:
        return {}
    asked = {
        "image": container.image,
        "pull": None if container.pull is PullPolicy.MISSING else container.pull.value,
        "volumes": [_volume_body(volume) for volume in container.volumes] or None,
        "entrypoint": None if container.entrypoint is None else list(container.entrypoint),
        "container_user": container.user or None,
        "network": None if container.network is ContainerNetwork.HOST else container.network.value,
        "read_only": container.read_only or None,
        "shm": container.shm_mib,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _volume_body(volume: Volume) -> dict[str, Any]:
    asked = {
        "target": volume.target,
        "source": volume.source or None,
        "kind": None if volume.kind is VolumeKind.HOST else volume.kind.value,
        "read_only": volume.read_only or None,
        "size": volume.size_mib,
    }
    return {name: value for name, value in asked.items() if value is not None}
