"""Volumes: folders of the node, and folders that come and go with the program."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.amounts import memory_mib
from gpupool.specs.kubernetes.reading import View
from gpupool.specs.kubernetes.report import Notice
from gpupool.specs.kubernetes.tables import EMPTY_DIR, HOST_PATH, MOUNT

Values = dict[str, Any]
HONOURED = ("hostPath", "emptyDir")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place inside a container
CLAIM = "persistentVolumeClaim"
_CLAIM = "There are no storage claims here: mount a folder of the nodes by hostPath, or name it: --claim NAME=/folder."
_FILES = "Put the files into a folder of the nodes, and mount it by hostPath."
_HINTS = {CLAIM: _CLAIM, "ephemeral": _CLAIM, "configMap": _FILES, "secret": _FILES}


def volume_bodies(pod: View, container: View, claims: Mapping[str, str]) -> list[Values]:
    """The field ``volumes`` of a request: the container's mounts of the pod's volumes; faults are noted."""
    volumes = {volume.text("name"): volume for volume in pod.each("volumes")}
    bodies = []
    for mount in container.each("volumeMounts"):
        mount.check(MOUNT)
        volume = volumes.get(mount.text("name"))
        if volume is None:
            mount.refuse(f"names the volume '{mount.text('name')[:80]}', which the pod does not have.")
            continue
        body = _body(volume, mount, claims)
        if body is not None:
            bodies.append(body | {"target": mount.text("mountPath")})
    return bodies


def note_not_mounted(pod: View, container: View) -> None:
    """Say of each mount that a plain process does not have it, but where it sees the same folder anyway."""
    volumes = {volume.text("name"): volume for volume in pod.each("volumes")}
    for mount in container.each("volumeMounts"):
        mount.check(MOUNT)
        volume, target = volumes.get(mount.text("name")), posixpath.normpath(mount.text("mountPath"))
        host = volume.follow("hostPath", "path") if volume is not None else None
        if host is not None and posixpath.normpath(host.scalar()) == target and not mount.flag("readOnly"):
            continue
        if target != SHARED_MEMORY:
            mount.report.warn(
                mount.place,
                Notice.VOLUME_NOT_MOUNTED,
                f"Nothing is mounted at {target[:200]}: the program runs as a process and sees the machine's folders.",
            )


def _body(volume: View, mount: View, claims: Mapping[str, str]) -> Values | None:
    source = next((key for key in volume.keys() if key != "name"), "emptyDir")  # noqa: SIM118 - keys() notes faults
    described = volume.get(source)
    if source == "emptyDir":
        return _empty(described)
    if source == "hostPath" and described is not None:
        described.check(HOST_PATH)
        return _folder(described.text("path"), mount)
    claim = described.text("claimName") if source == CLAIM and described is not None else ""
    if claim in claims:
        return _folder(claims[claim], mount)
    if described is not None:
        hint = _HINTS.get(source, f"Volumes here are {' and '.join(HONOURED)}.")
        described.refuse("is no volume that the pool has.", hint, ErrorCode.UNSUPPORTED)
    return None


def _folder(path: str, mount: View) -> Values:
    below = mount.text("subPath")
    if below.startswith("/") or ".." in below.split("/"):
        mount.refuse("must have a subPath below the volume's folder, without '..'.")
    whole = posixpath.join(path, below) if below else path
    return {"source": whole} | ({"read_only": True} if mount.flag("readOnly") else {})


def _empty(described: View | None) -> Values:
    if described is None:
        return {"kind": "empty"}
    described.check(EMPTY_DIR)
    if described.text("medium") != "Memory":
        return {"kind": "empty"}
    limit = described.get("sizeLimit")
    return {"kind": "memory"} | ({"size": memory_mib(limit)} if limit is not None else {})
