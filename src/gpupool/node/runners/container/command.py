"""The engine's command line for one program. Pure.

Every container gets the job's own user, no capabilities, no new privileges and no detach keys. Variables are not on the
command line, where all users of the machine could read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.work.program.container import (
    LOCAL_REGISTRY,
    ContainerNetwork,
    ContainerSpec,
    PullPolicy,
    VolumeKind,
)
from gpupool.domain.work.program.supervision import ProcessSpec, Stdio
from gpupool.node.runners.container.engine import LABEL, WORKSPACE_LABEL, CgroupUse
from gpupool.node.runners.container.probe import cgroup_options
from gpupool.node.runners.container.spec import ContainerSetup, Mount, cid_file, container_name

MAX_LINE_BYTES = 60_000  # bytes; podman reads a file of variables by lines of at most 64 KiB


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """The job's user and groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class UnfitError(ValueError):
    """A variable that cannot be passed to a container; the text says which and why."""


def environment_file(env: Mapping[str, str]) -> bytes:
    """Return the content for ``--env-file``. Raises ``UnfitError``."""
    lines = []
    for name, value in env.items():
        line = f"{name}={value}"
        if any(c in line for c in "\n\r\0"):
            raise UnfitError(f"The variable {name[:80]} has a line break, which containers do not support")
        if any(c.isspace() for c in name) or name.startswith("#"):
            raise UnfitError(f"A variable of a container cannot be named '{name[:80]}'")
        if len(line.encode("utf-8", "surrogateescape")) > MAX_LINE_BYTES:
            raise UnfitError(f"The variable {name[:80]} is longer than {MAX_LINE_BYTES} bytes")
        lines.append(line)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def run_command(
    setup: ContainerSetup, spec: ProcessSpec, folder: Path, env_fd: int, mounts: Sequence[Mount], who: ContainerUser
) -> list[str]:
    """Return the complete ``run`` command."""
    container = spec.container or ContainerSpec(setup.image)
    engine = setup.engine
    arguments = ["run", *([] if setup.layers else ["--rm"]), "--init", "--name", container_name(spec.key)]
    arguments += ["--cidfile", str(cid_file(folder))]
    arguments += ["--label", f"{LABEL}={setup.pool}", f"--pull={_pull(setup, container)}", *engine.run_options]
    labels = (*setup.labels, (WORKSPACE_LABEL, setup.layers))  # also an empty one: the image may have any label
    arguments += [word for name, value in labels for word in ("--label", f"{name}={value}")]
    arguments += [f"--unsetenv={name}" for name in setup.unset]
    arguments += ["--detach-keys=", "--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
    arguments += _user(setup, container, who) + _limits(setup, spec) + _streams(setup, spec)
    arguments += ["--network", "none" if container.network is ContainerNetwork.NONE else "host"]
    arguments += ["--env-file", f"/proc/self/fd/{env_fd}"]
    if container.read_only:
        arguments.append("--read-only")
    if spec.cwd:
        arguments += ["--workdir", spec.cwd]
    arguments += _shared_memory(setup, container)
    arguments += _mounts((*setup.mounts, *mounts)) + _own_volumes(container, folder) + list(setup.devices)
    if container.entrypoint is not None:
        arguments += ["--entrypoint", _entry_point(container.entrypoint, engine.podman)]
    rest = () if engine.podman or container.entrypoint is None else container.entrypoint[1:]
    return engine.command(*arguments, setup.image, *rest, *spec.argv)


def exec_command(setup: ContainerSetup, spec: ProcessSpec, env_fd: int, who: ContainerUser) -> list[str]:
    """Return the ``exec`` command for the container of another program."""
    arguments = ["exec", "--detach-keys=", "--env-file", f"/proc/self/fd/{env_fd}"]
    arguments += ["--interactive"] if spec.stdio is not Stdio.BATCH else []
    arguments += ["--tty"] if spec.stdio is Stdio.TTY else []
    arguments += [] if setup.engine.rootless else ["--user", f"{who.uid}:{who.gid}"]
    arguments += ["--workdir", spec.cwd] if spec.cwd else []
    return setup.engine.command(*arguments, container_name(setup.home), *spec.argv)


def _pull(setup: ContainerSetup, container: ContainerSpec) -> str:
    """Return the pull policy; local images have no registry."""
    return PullPolicy.NEVER if setup.image.startswith(f"{LOCAL_REGISTRY}/") else container.pull.value


def _user(setup: ContainerSetup, container: ContainerSpec, who: ContainerUser) -> list[str]:
    """Return the user options: root's engine runs the job's user without capabilities, rootless any user."""
    if setup.engine.rootless:
        return ["--user", container.user] if container.user else []
    options = ["--cap-drop", "all", "--user", f"{who.uid}:{who.gid}"]
    return options + [word for group in who.groups if group != who.gid for word in ("--group-add", str(group))]


def _limits(setup: ContainerSetup, spec: ProcessSpec) -> list[str]:
    use = setup.engine.cgroups
    options = cgroup_options(use, spec.key) if setup.engine.podman else []
    if use in {CgroupUse.DISABLED, CgroupUse.BELOW}:
        return options
    if spec.memory_mib is not None:
        options += ["--memory", f"{spec.memory_mib}m", "--memory-swap", f"{spec.memory_mib}m"]
    return options + (["--cpus", f"{spec.cpus:g}"] if spec.cpus is not None else [])


def _streams(setup: ContainerSetup, spec: ProcessSpec) -> list[str]:
    """Return the stream options: without a terminal the program gets the shepherd's pipes, if the engine can."""
    if not setup.engine.podman:
        tty = ["--tty"] if spec.stdio is Stdio.TTY else []
        return ["--log-driver", "none", *(["--interactive"] if spec.stdio is not Stdio.BATCH else []), *tty]
    umask = ["--umask", f"{spec.umask:04o}"]
    if spec.stdio is Stdio.TTY:
        return [*umask, "--log-driver", "none", "--interactive", "--tty"]
    log = "passthrough" if setup.engine.passthrough else "none"
    return [*umask, "--log-driver", log, *(["--interactive"] if spec.stdio is Stdio.PIPES else [])]


def _shared_memory(setup: ContainerSetup, container: ContainerSpec) -> list[str]:
    """Return the size of shared memory: the default of 64 MiB is too small for data loaders."""
    if any(volume.target == "/dev/shm" for volume in container.volumes):  # noqa: S108 - a path inside the container
        return []
    unbounded = "0" if setup.engine.podman else "1g"  # unlimited, but counted in the program's memory limit
    return ["--shm-size", f"{container.shm_mib}m" if container.shm_mib else unbounded]


def _mounts(mounts: Sequence[Mount]) -> list[str]:
    options = []
    for mount in mounts:
        mode = "ro" if mount.read_only else "rw"
        options += ["--volume", f"{mount.source}:{mount.target}:{mode},rbind,nosuid,nodev,rprivate"]
    return options


def _own_volumes(container: ContainerSpec, folder: Path) -> list[str]:
    """Return empty volumes: in memory, or in the replica's folder, where they are deleted with it."""
    options = []
    for number, volume in enumerate(container.volumes):
        if volume.kind is VolumeKind.MEMORY:
            size = f",size={volume.size_mib}m" if volume.size_mib else ""
            options += ["--tmpfs", f"{volume.target}:rw,mode=1777,nosuid,nodev{size}"]
        elif volume.kind is VolumeKind.EMPTY:
            options += _mounts([Mount(str(empty_folder(folder, number)), volume.target, read_only=False)])
    return options


def empty_folder(folder: Path, number: int) -> Path:
    """Return the folder of an empty volume on the node."""
    return folder / "empty" / str(number)


def _entry_point(words: tuple[str, ...], podman: bool) -> str:
    """Return the option's value; no words remove the image's own entry point."""
    return json.dumps(words) if podman else words[0] if words else ""
