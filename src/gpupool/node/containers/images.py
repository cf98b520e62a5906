"""The images of a node: listed, brought in from an archive, fetched, removed. Everything here blocks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.images import LOCAL_REGISTRY, check_image, full_name
from gpupool.node.containers.engine import Engine, last_line

TRANSFER_S = 3600.0
_LOADED = re.compile(r"Loaded image(?:\(s\))?: (.+)")


def resolve(engine: Engine, name: str) -> str:
    """The name by which the engine finds the image here, else its full name. Raises INVALID_NAME."""
    check_image(name)
    for candidate in dict.fromkeys((own_name(name), full_name(name))):
        if engine.call("image", "inspect", "--format", "{{.Id}}", candidate).returncode == 0:
            return candidate
    return full_name(name)


def list_images(engine: Engine) -> list[dict[str, Any]]:
    """Each with ``name``, ``id``, ``size_bytes`` and ``created_at`` (text), by name."""
    form = "json" if engine.podman else "{{json .}}"
    done = engine.call("images", "--no-trunc", "--format", form)
    if done.returncode:
        raise _failed("list its images", done.stderr)
    text = done.stdout.decode("utf-8", "replace")
    found = list(_podman_images(text) if engine.podman else _docker_images(text))
    return sorted(found, key=lambda image: (image["name"], image["id"]))


def _podman_images(text: str) -> Iterator[dict[str, Any]]:
    for image in json.loads(text or "[]") or []:
        for name in image.get("Names") or [""]:
            yield {
                "name": name,
                "id": image["Id"].removeprefix("sha256:")[:12],
                "size_bytes": image.get("Size", 0),
                "created_at": str(image.get("CreatedAt", "")),
            }


def _docker_images(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        image = json.loads(line)
        name = "" if image["Repository"] == "<none>" else f"{image['Repository']}:{image['Tag']}"
        yield {"name": name, "id": image["ID"][7:19], "size_bytes": 0, "created_at": image["CreatedAt"]}


def import_archive(engine: Engine, fd: int, name: str = "") -> list[str]:
    """The names of what came out of an archive (``podman save``, ``docker save``, an OCI archive).

    With ``name`` the archive is a file system alone (``tar`` of a folder), or the image in it gets that name too.
    """
    os.lseek(fd, 0, os.SEEK_SET)
    done = engine.call("load", timeout_s=TRANSFER_S, input_file=fd)
    if done.returncode == 0:
        names = _loaded(done.stdout + done.stderr)
        if not name:
            return names
        return [_tag(engine, names[-1], name)] if names else names
    if not name:
        raise _failed("read the archive", done.stderr, "Make it with `podman save` or `docker save`.")
    os.lseek(fd, 0, os.SEEK_SET)
    full = own_name(name)
    done = engine.call("import", "-", full, timeout_s=TRANSFER_S, input_file=fd)
    if done.returncode:
        raise _failed("read the archive", done.stderr, "Make it with `podman save`, or as a tar of a file system.")
    return [full]


def _loaded(output: bytes) -> list[str]:
    found = _LOADED.findall(output.decode("utf-8", "replace"))
    return [name.strip() for line in found for name in line.split(",")]


def own_name(name: str) -> str:
    """The full name of an image that is made here: a short one belongs to no registry."""
    return full_name(name if "/" in name else f"{LOCAL_REGISTRY}/{name}")


def _tag(engine: Engine, image: str, name: str) -> str:
    full = own_name(name)
    done = engine.call("tag", image, full)
    if done.returncode:
        raise _failed(f"name the image {full}", done.stderr)
    return full


def pull(engine: Engine, name: str) -> str:
    """Fetch it from its registry; its full name."""
    full = full_name(name)
    done = engine.call("pull", "--quiet", full, timeout_s=TRANSFER_S)
    if done.returncode:
        raise _failed(f"fetch {full}", done.stderr, "Check the name, and whether the node reaches the registry.")
    return full


def remove(engine: Engine, name: str) -> None:
    """Remove a name, and the image with its last one. Raises NOT_FOUND, or WRONG_STATE while it is used."""
    found = resolve(engine, name)
    done = engine.call("rmi", found)
    if done.returncode == 0:
        return
    said = done.stderr.decode("utf-8", "replace").lower()
    if "in use" in said or "being used" in said:
        raise GpupoolError(ErrorCode.WRONG_STATE, f"{found} is used by a container.", "Stop its workload first.")
    if "no such image" in said or "not known" in said or "unable to find" in said:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"The node has no image {name}.", "See `gpupool image list`.")
    raise _failed(f"remove {found}", done.stderr)


def _failed(what: str, said: bytes, hint: str = "See the node's log.") -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"The node cannot {what}: {last_line(said)}.", hint)
