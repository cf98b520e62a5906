"""The engine's command line for one program. Pure.

What every container gets: the job's own user, no capabilities, no new privileges, no detaching by keys, and nothing of
its variables on the command line, where everybody on the machine could read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.container import ContainerNetwork, ContainerSpec, PullPolicy, VolumeKind
from gpupool.domain.images import LOCAL_REGISTRY
from gpupool.domain.supervision import ProcessSpec, Stdio
from gpupool.node.containers.box import Box, Mount, cid_file, container_name
from gpupool.node.containers.engine import LABEL, CgroupUse
from gpupool.node.containers.probe import cgroup_options

LONGEST_LINE = 60_000  # bytes; podman reads a file of variables by lines of at most 64 KiB


@dataclass(frozen=True, slots=True)
class Identity:
    """The job's user and groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class UnfitError(ValueError):
    """A variable that cannot be handed to a container; the text says which and why."""


def environment_file(env: Mapping[str, str]) -> bytes:
    """What ``--env-file`` reads. Raises ``UnfitError``."""
    lines = []
    for name, value in env.items():
        line = f"{name}={value}"
        if any(c in line for c in "\n\r\0"):
            raise UnfitError(f"The variable {name[:80]} has a line break, which a container's environment cannot carry")
        if any(c.isspace() for c in name) or name.startswith("#"):
            raise UnfitError(f"A variable of a container cannot be called '{name[:80]}'")
        if len(line.encode("utf-8", "surrogateescape")) > LONGEST_LINE:
            raise UnfitError(f"The variable {name[:80]} is longer than {LONGEST_LINE} bytes")
        lines.append(line)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def run_command(
    box: Box, spec: ProcessSpec, folder: Path, env_fd: int, mounts: Sequence[Mount], who: Identity
) -> list[str]:
    """``run`` with everything."""
    container = spec.container or ContainerSpec(box.image)
    engine = box.engine
    arguments = ["run", "--rm", "--init", "--name", container_name(spec.key), "--cidfile", str(cid_file(folder))]
    arguments += ["--label", f"{LABEL}={box.pool}", f"--pull={_pull(box, container)}", *engine.run_options]
    arguments += ["--detach-keys=", "--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
    arguments += _user(box, container, who) + _limits(box, spec) + _streams(box, spec)
    arguments += ["--network", "none" if container.network is ContainerNetwork.NONE else "host"]
    arguments += ["--env-file", f"/proc/self/fd/{env_fd}"]
    if container.read_only:
        arguments.append("--read-only")
    if spec.cwd:
        arguments += ["--workdir", spec.cwd]
    arguments += _shared_memory(box, container)
    arguments += _mounts((*box.mounts, *mounts)) + _own_volumes(container, folder) + list(box.devices)
    if container.entrypoint is not None:
        arguments += ["--entrypoint", _entry_point(container.entrypoint, engine.podman)]
    rest = () if engine.podman or container.entrypoint is None else container.entrypoint[1:]
    return engine.command(*arguments, box.image, *rest, *spec.argv)


def exec_command(box: Box, spec: ProcessSpec, env_fd: int, who: Identity) -> list[str]:
    """``exec`` in the container of another program."""
    arguments = ["exec", "--detach-keys=", "--env-file", f"/proc/self/fd/{env_fd}"]
    arguments += ["--interactive"] if spec.stdio is not Stdio.BATCH else []
    arguments += ["--tty"] if spec.stdio is Stdio.TTY else []
    arguments += [] if box.engine.rootless else ["--user", f"{who.uid}:{who.gid}"]
    arguments += ["--workdir", spec.cwd] if spec.cwd else []
    return box.engine.command(*arguments, container_name(box.home), *spec.argv)


def _pull(box: Box, container: ContainerSpec) -> str:
    """What was made here has no registry."""
    return PullPolicy.NEVER if box.image.startswith(f"{LOCAL_REGISTRY}/") else container.pull.value


def _user(box: Box, container: ContainerSpec, who: Identity) -> list[str]:
    """By root: the job's own user and groups, without any capability. By a user: whoever it likes, mapped to him."""
    if box.engine.rootless:
        return ["--user", container.user] if container.user else []
    options = ["--cap-drop", "all", "--user", f"{who.uid}:{who.gid}"]
    return options + [word for group in who.groups if group != who.gid for word in ("--group-add", str(group))]


def _limits(box: Box, spec: ProcessSpec) -> list[str]:
    use = box.engine.cgroups
    options = cgroup_options(use, spec.key) if box.engine.podman else []
    if use in {CgroupUse.DISABLED, CgroupUse.BELOW}:
        return options
    if spec.memory_mib is not None:
        options += ["--memory", f"{spec.memory_mib}m", "--memory-swap", f"{spec.memory_mib}m"]
    return options + (["--cpus", f"{spec.cpus:g}"] if spec.cpus is not None else [])


def _streams(box: Box, spec: ProcessSpec) -> list[str]:
    """Without a terminal the program has its shepherd's own pipes, where the engine can hand them on."""
    if not box.engine.podman:
        tty = ["--tty"] if spec.stdio is Stdio.TTY else []
        return ["--log-driver", "none", *(["--interactive"] if spec.stdio is not Stdio.BATCH else []), *tty]
    umask = ["--umask", f"{spec.umask:04o}"]
    if spec.stdio is Stdio.TTY:
        return [*umask, "--log-driver", "none", "--interactive", "--tty"]
    log = "passthrough" if box.engine.passthrough else "none"
    return [*umask, "--log-driver", log, *(["--interactive"] if spec.stdio is Stdio.PIPES else [])]


def _shared_memory(box: Box, container: ContainerSpec) -> list[str]:
    """As much as the program may have: the default of 64 MiB is too small for data loaders."""
    if any(volume.target == "/dev/shm" for volume in container.volumes):  # noqa: S108 - a place inside
        return []
    unbounded = "0" if box.engine.podman else "1g"  # which is bounded by the program's memory
    return ["--shm-size", f"{container.shm_mib}m" if container.shm_mib else unbounded]


def _mounts(mounts: Sequence[Mount]) -> list[str]:
    options = []
    for mount in mounts:
        mode = "ro" if mount.read_only else "rw"
        options += ["--volume", f"{mount.source}:{mount.target}:{mode},rbind,nosuid,nodev,rprivate"]
    return options


def _own_volumes(container: ContainerSpec, folder: Path) -> list[str]:
    """Empty folders of its own: in memory, or below the replica's folder, where they go with it."""
    options = []
    for number, volume in enumerate(container.volumes):
        if volume.kind is VolumeKind.MEMORY:
            size = f",size={volume.size_mib}m" if volume.size_mib else ""
            options += ["--tmpfs", f"{volume.target}:rw,mode=1777,nosuid,nodev{size}"]
        elif volume.kind is VolumeKind.EMPTY:
            options += _mounts([Mount(str(empty_folder(folder, number)), volume.target, read_only=False)])
    return options


def empty_folder(folder: Path, number: int) -> Path:
    """Where an empty volume is on the node."""
    return folder / "empty" / str(number)


def _entry_point(words: tuple[str, ...], podman: bool) -> str:
    """The option's value; no words: the image's own is taken away."""
    return json.dumps(words) if podman else words[0] if words else ""
