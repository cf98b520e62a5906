"""Names of container images: syntax, full form, and the images that a rule allows."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_IMAGE_NAME_LENGTH = 512
DEFAULT_REGISTRY = "docker.io"
LOCAL_REGISTRY = "localhost"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_NAME = re.compile(
    rf"(?:(?P<host>{_HOST}(?::[0-9]{{1,5}})?)/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Engines read these as paths to files of the machine and not as registries when a colon follows.
_TRANSPORTS = frozenset(
    {"dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive", "containers-storage", "sif", "tarball"}
    | {"ostree", "atomic"}
)


def check_image(name: str) -> None:
    """Raise ``GpupoolError(INVALID_NAME)`` if this is not the name of an image.

    Paths to files (``docker-archive:/...``) are refused: an engine would open them with its own permissions.
    """
    found = _NAME.fullmatch(name) if len(name) <= MAX_IMAGE_NAME_LENGTH else None
    transport, colon, _ = name.partition("/")[0].partition(":")
    if found is None or (colon and transport in _TRANSPORTS):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{name[:80]}' is not the name of an image.",
            "Write pytorch/pytorch:2.4.0, nvcr.io/nvidia/tensorflow:24.05-tf2-py3 or localhost/mine:1.",
        )


def full_image_name(name: str) -> str:
    """Return the name with registry and tag, as ``docker`` expands it: ``busybox`` is docker.io/library/busybox:latest.

    Raises INVALID_NAME.
    """
    check_image(name)
    found = _NAME.fullmatch(name)
    host, path = (found["host"], found["path"]) if found is not None else (None, name)
    tag, digest = (found["tag"], found["digest"]) if found is not None else (None, None)
    if host is not None and not ("." in host or ":" in host or host == LOCAL_REGISTRY):
        host, path = None, f"{host}/{path}"
    if host is None:
        path = path if "/" in path else f"library/{path}"
    ending = f"@{digest}" if digest else f":{tag or 'latest'}"
    return f"{host or DEFAULT_REGISTRY}/{path}{ending}"


def is_image_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a rule allows an image: one of its patterns matches the full name, or there are no patterns.

    In a pattern ``*`` matches anything: ``nvcr.io/nvidia/*``, ``localhost/*``, ``docker.io/pytorch/pytorch:*``.
    """
    wanted = tuple(patterns)
    return not wanted or any(fnmatch.fnmatchcase(full_image_name(name), pattern) for pattern in wanted)
