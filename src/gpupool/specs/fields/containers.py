"""The container fields of a request: the image's name, user and volumes."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpupool.domain.errors import ErrorCode
from gpupool.domain.work.program.container import (
    ContainerNetwork,
    ContainerSpec,
    PullPolicy,
    Volume,
    VolumeKind,
    check_image,
)
from gpupool.specs import limits
from gpupool.specs.fields import quantities
from gpupool.specs.text.error_messages import refusal

MAX_VOLUMES = 64
MAX_USER = 64
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_RESERVED = ("/proc", "/sys", "/dev", "/run/gpupool", "/run/gpupool-slice")  # reserved paths inside the container
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place inside the container


def _user(value: object) -> object:
    if isinstance(value, str) and (len(value) > MAX_USER or not _USER.fullmatch(value)):
        raise refusal(ErrorCode.INVALID_NAME, "is not a user: use 1000, 1000:1000 or a name.")
    return value


Image = Annotated[str, quantities.checked_by(check_image), Field(min_length=1, max_length=512)]
ContainerUser = Annotated[str, BeforeValidator(_user), Field(min_length=1, max_length=MAX_USER)]


class VolumeSpec(BaseModel):
    """A mounted folder or file; the text SRC:DST or SRC:DST:ro is short for one of the node."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    target: Annotated[str, Field(min_length=2, max_length=limits.MAX_PATH)]
    """Absolute path in the container."""
    source: Annotated[str, Field(max_length=limits.MAX_PATH)] = ""
    """Absolute path of the folder or file on the node (kind host only)."""
    kind: Annotated[VolumeKind, Field(strict=False)] = VolumeKind.HOST
    """Kind: host, empty (a folder for the duration of the attempt) or memory (the same in memory)."""
    read_only: bool = False
    """Mount it read-only."""
    size: quantities.Size = None
    """Size limit of a volume of kind memory: MiB, or text such as 4G."""


def _volume(value: object) -> object:
    spec = _from_text(value) if isinstance(value, str) else value
    if isinstance(spec, dict):
        _check_volume(spec)
    return spec


def _from_text(text: str) -> dict[str, Any]:
    """Parse ``SRC:DST[:ro|rw]``."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in {"", "ro", "rw"} or rest.endswith(":"):
        raise refusal(
            ErrorCode.INVALID_REQUEST, f"'{text[:80]}' is not a volume.", "Write /data:/data or /data:/data:ro."
        )
    return {"source": source, "target": target, "read_only": mode == "ro"}


def _check_volume(spec: dict[str, Any]) -> None:
    host = spec.get("kind", VolumeKind.HOST) == VolumeKind.HOST
    for name, place in (("source", spec.get("source", "")), ("target", spec.get("target"))):
        if name == "source" and not host:
            continue
        if isinstance(place, str):
            _check_place(name, place)
    if not host and spec.get("source"):
        raise refusal(ErrorCode.INVALID_REQUEST, "must be omitted: only the kind host has one.", path=("source",))
    if spec.get("size") is not None and spec.get("kind") != VolumeKind.MEMORY:
        raise refusal(ErrorCode.INVALID_REQUEST, "is for the kind memory only.", path=("size",))


def _check_place(name: str, place: str) -> None:
    if not place.startswith("/") or any(c in place for c in "\0\n\r:,"):
        raise refusal(
            ErrorCode.INVALID_REQUEST,
            f"'{place[:80]}' must be an absolute path, without ':' and ','.",
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
        sentence = f"cannot be {target[:80]}: that path is reserved."
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, "Use another path.", ("target",))


VolumeField = Annotated[VolumeSpec, BeforeValidator(_volume, json_schema_input_type=str | VolumeSpec)]


def container_body(container: ContainerSpec | None) -> dict[str, Any]:
    """Return the container fields of a request, without defaults."""
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
