"""Removal of containers that outlived their programs, found by the pool's label."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from gpupool.domain.errors import GpupoolError
from gpupool.node.host import cgroups
from gpupool.node.host.log import log_event
from gpupool.node.runners.container.engine import LABEL, PREFIX, WORKSPACE_LABEL, ContainerEngine
from gpupool.node.runners.container.probe import group_paths
from gpupool.node.runners.container.spec import ContainerSetup, cid_file, container_name

REPOSITORY = "repository"  # the clone that is mounted into the container
MAX_TRIES = 3  # the first may only make the engine notice that the container has ended


def remove(engine: ContainerEngine, key: str) -> bool:
    """Kill and remove the container of a program; return True if none is left."""
    kill_at_once = ("--time", "0") if engine.podman else ()
    said = b""
    for _ in range(MAX_TRIES):
        done = engine.call("rm", "--force", "--volumes", *kill_at_once, container_name(key))
        said = done.stderr.lower()
        if done.returncode == 0 or b"no such container" in said or b"no container" in said:
            return True
    log_event("container not removed", key=key, error=said.decode("utf-8", "replace")[-300:])
    return False


def end_foreign(setup: ContainerSetup, key: str) -> bool:
    """End a container that is a child of the engine's daemon and not ours; return True if none is left."""
    if setup.engine.podman or setup.home:
        return True
    try:
        return remove(setup.engine, key)
    except GpupoolError as error:
        log_event("container not ended", key=key, error=error.message)
        return False


def clean(engine: ContainerEngine | None, folder: Path) -> None:
    """Remove what an ended program may have left: its container, control groups, empty volumes."""
    for name in ("empty", REPOSITORY):
        shutil.rmtree(folder / name, ignore_errors=True)
    if engine is not None and _may_be_left(engine, folder):
        try:
            remove(engine, folder.name)
        except GpupoolError as error:
            log_event("container not removed", key=folder.name, error=error.message)
        cid_file(folder).unlink(missing_ok=True)
    cgroups.remove(tuple(group_paths(folder.name)))


def _may_be_left(engine: ContainerEngine, folder: Path) -> bool:
    """Return True if a container may be left, without calling the engine, which takes a tenth of a second."""
    try:
        cid = cid_file(folder).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return True  # the engine was killed before it wrote the file, perhaps after it had made the container
    return not engine.containers or (Path(engine.containers) / cid).exists()


def remove_strangers(engine: ContainerEngine, pool: str, keep: Collection[str]) -> int:
    """Remove this pool's containers without a program in ``keep``; return their number.

    Those of workspaces stay: they are saved before the next use.
    """
    form = "json" if engine.podman else "{{json .}}"
    done = engine.call("ps", "--all", "--filter", f"label={LABEL}={pool}", "--format", form)
    names = _names(done.stdout.decode("utf-8", "replace"), podman=engine.podman) if done.returncode == 0 else []
    strangers = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return sum(remove(engine, key) for key in strangers if key not in keep)


def _names(text: str, *, podman: bool) -> list[str]:
    if podman:
        listed = [
            each for each in json.loads(text or "[]") or [] if not (each.get("Labels") or {}).get(WORKSPACE_LABEL)
        ]
        return [name for container in listed for name in container.get("Names", ())]
    return [json.loads(line)["Names"] for line in text.splitlines() if line.strip()]
