"""Containers that outlived their programs: found by the pool's mark and removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from gpupool.domain.errors import GpupoolError
from gpupool.node import cgroups
from gpupool.node.containers.box import Box, cid_file, container_name
from gpupool.node.containers.engine import LABEL, PREFIX, Engine
from gpupool.node.containers.probe import group_paths
from gpupool.node.journal import say

TRIES = 3  # the first may only learn that the container has ended without the engine


def remove(engine: Engine, key: str) -> bool:
    """Kill and remove the container of a program; True when there is none left."""
    kill_at_once = ("--time", "0") if engine.podman else ()
    said = b""
    for _ in range(TRIES):
        done = engine.call("rm", "--force", "--volumes", *kill_at_once, container_name(key))
        said = done.stderr.lower()
        if done.returncode == 0 or b"no such container" in said or b"no container" in said:
            return True
    say("container not removed", key=key, error=said.decode("utf-8", "replace")[-300:])
    return False


def end_foreign(box: Box, key: str) -> bool:
    """End a container that is a server's child and not ours; True when there is none (left)."""
    if box.engine.podman or box.home:
        return True
    try:
        return remove(box.engine, key)
    except GpupoolError as error:
        say("container not ended", key=key, error=error.message)
        return False


def clean(engine: Engine | None, folder: Path) -> None:
    """What an ended program may have left: a container that its engine did not remove, groups, empty volumes."""
    shutil.rmtree(folder / "empty", ignore_errors=True)
    if engine is not None and _may_be_left(engine, folder):
        try:
            remove(engine, folder.name)
        except GpupoolError as error:
            say("container not removed", key=folder.name, error=error.message)
        cid_file(folder).unlink(missing_ok=True)
    cgroups.remove(tuple(group_paths(folder.name)))


def _may_be_left(engine: Engine, folder: Path) -> bool:
    """Seen without asking the engine, which takes a tenth of a second."""
    try:
        cid = cid_file(folder).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return not engine.containers or (Path(engine.containers) / cid).exists()


def remove_strangers(engine: Engine, pool: str, keep: Collection[str]) -> int:
    """Remove this pool's containers of programs that are not kept; how many there were."""
    form = "json" if engine.podman else "{{json .}}"
    done = engine.call("ps", "--all", "--filter", f"label={LABEL}={pool}", "--format", form)
    names = _names(done.stdout.decode("utf-8", "replace"), podman=engine.podman) if done.returncode == 0 else []
    strangers = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return sum(remove(engine, key) for key in strangers if key not in keep)


def _names(text: str, *, podman: bool) -> list[str]:
    if podman:
        return [name for container in json.loads(text or "[]") or [] for name in container.get("Names", ())]
    return [json.loads(line)["Names"] for line in text.splitlines() if line.strip()]
