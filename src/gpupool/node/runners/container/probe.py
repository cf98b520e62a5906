"""Detection of an engine's options on this machine, by running small containers.

These differ between machines: the runtime that works (crun, runc), the control group of containers, the resource
limits, and the image store. The container for the probe uses the machine's own files, so no image is needed.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.host import cgroups
from gpupool.node.host.log import log_event
from gpupool.node.runners.container.engine import PATH, CgroupUse, ContainerEngine, clean_environment, last_line

STORE_VARIABLE = "GPUPOOL_CONTAINER_STORE"  # a folder for images and containers; the engine's own otherwise
ENGINE_VARIABLE = "GPUPOOL_CONTAINER_ENGINE"  # podman or docker; the first that works otherwise
_PROBE = "probe"
_RUNTIMES = ("", "crun", "runc")
_COMMAND_TIMEOUT_S = 60.0
_MAX_PROCESSES = 32768  # podman's own limit
_LINKS = ("bin", "lib", "lib64", "sbin")
_FOLDERS = ("usr", "proc", "sys", "dev", "etc", "run", "tmp")
HINT = "Install podman (with crun or runc), or docker, on the node."


def find_engine(run_folder: Path) -> ContainerEngine:
    """Return the first engine that runs a container here. Takes seconds.

    Raises ``GpupoolError(UNSUPPORTED)`` with the output of the last one.
    """
    why = "neither podman nor docker is installed"
    chosen = os.environ.get(ENGINE_VARIABLE)
    for kind in ("podman", "docker") if not chosen else (chosen,):
        program = shutil.which(kind, path=PATH)
        if program is None:
            continue
        found = _podman(program, run_folder) if kind == "podman" else _docker(program)
        if isinstance(found, ContainerEngine):
            log_event("container engine", **found.to_dict())
            return found
        why = f"{kind} does not run: {found}"
    raise GpupoolError(ErrorCode.UNSUPPORTED, f"This node runs no containers: {why}.", HINT)


@dataclass(frozen=True, slots=True)
class _Try:
    runtime: str
    cgroups: CgroupUse


def _tries() -> Iterator[_Try]:
    unified = (cgroups.ROOT / "cgroup.controllers").exists()
    near = (CgroupUse.SIBLING,) if unified else (CgroupUse.BELOW,)
    uses = (CgroupUse.DISABLED, *(near if os.geteuid() == 0 else ()), CgroupUse.ENGINE)
    for use in uses:
        for runtime in _RUNTIMES:
            if not runtime or shutil.which(runtime, path=PATH):
                yield _Try(runtime, use)


def _podman(program: str, run_folder: Path) -> ContainerEngine | str:
    engine = ContainerEngine("podman", program, _version(program), _store(), _ulimits(), rootless=os.geteuid() != 0)
    engine = replace(engine, passthrough=_version_number(engine.version) >= (4, 0))
    root, why = _make_root(run_folder), "no runtime was found"
    try:
        for attempt in _tries():
            trial = _configured(engine, attempt)
            why = _failure(trial, root)
            if "rlimit" in why:
                engine = replace(engine, run_options=_ulimits(_MAX_PROCESSES))
                trial = _configured(engine, attempt)
                why = _failure(trial, root)
            if not why:
                return replace(trial, containers=_containers_folder(trial))
    finally:
        shutil.rmtree(root, ignore_errors=True)
        cgroups.remove(tuple(group_paths(_PROBE)))
    return why


def _configured(engine: ContainerEngine, attempt: _Try) -> ContainerEngine:
    options = [*engine.options]
    if attempt.runtime:
        options += ["--runtime", attempt.runtime]
    if attempt.cgroups in {CgroupUse.BELOW, CgroupUse.SIBLING}:
        options += ["--cgroup-manager", "cgroupfs"]
    return replace(engine, options=tuple(options), cgroups=attempt.cgroups)


def cgroup_options(use: CgroupUse, key: str) -> list[str]:
    """Return the options of ``run`` that put a container into the control group of ``use``."""
    if use is CgroupUse.DISABLED:
        return ["--cgroups=disabled"]
    if use in {CgroupUse.BELOW, CgroupUse.SIBLING}:
        return [f"--cgroup-parent=/{cgroups.BASE}/{key}{'.setup' if use is CgroupUse.SIBLING else ''}"]
    return []


def group_paths(key: str) -> list[str]:
    """Return the control groups that an engine may create for a program of that key, in every hierarchy."""
    if (cgroups.ROOT / "cgroup.controllers").exists():
        return [str(cgroups.ROOT / cgroups.BASE / f"{key}.box")]
    found = [path for path in cgroups.ROOT.glob("*") if path.is_dir() and not path.is_symlink()]
    return [str(path / cgroups.BASE / key) for path in found]


def _failure(engine: ContainerEngine, root: Path) -> str:
    """Return why a container of the machine's own files does not run; empty if it does."""
    user = [] if engine.rootless else ["--user", "65534:65534"]
    limits = ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--network", "host", "--log-driver", "none"]
    arguments = ["run", "--rm", *engine.run_options, *limits, *user, *cgroup_options(engine.cgroups, _PROBE)]
    arguments += ["-v", "/usr:/usr:ro", "--rootfs", str(root), "/usr/bin/true"]
    try:
        done = engine.call(*arguments, timeout_s=_COMMAND_TIMEOUT_S)
    except GpupoolError as error:
        return error.message
    return "" if done.returncode == 0 else last_line(done.stderr) or "the container failed"


def _containers_folder(engine: ContainerEngine) -> str:
    done = engine.call("info", "--format", "{{.Store.GraphRoot}}/{{.Store.GraphDriverName}}-containers")
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def _make_root(run_folder: Path) -> Path:
    root = run_folder / "probe-root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    root.chmod(0o755)
    for name in _FOLDERS:
        (root / name).mkdir()
    for name in _LINKS:
        at = Path("/") / name
        if at.is_symlink():
            (root / name).symlink_to(at.readlink())
    return root


def _docker(program: str) -> ContainerEngine | str:
    done = subprocess.run(
        [program, "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
        env=clean_environment(),
    )
    if done.returncode:
        return last_line(done.stderr)
    return ContainerEngine("docker", program, done.stdout.decode().strip(), run_options=_ulimits())


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    return done.stdout.decode("utf-8", "replace").strip()[:80]


def _version_number(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _store() -> tuple[str, ...]:
    folder = os.environ.get(STORE_VARIABLE)
    return ("--root", f"{folder}/storage", "--runroot", f"{folder}/run") if folder else ()


def _ulimits(most_processes: int | None = None) -> tuple[str, ...]:
    """Return options for as many files and processes as the agent itself may have."""
    return (
        "--ulimit",
        f"nofile={_pair(resource.RLIMIT_NOFILE, None)}",
        "--ulimit",
        f"nproc={_pair(resource.RLIMIT_NPROC, most_processes)}",
    )


def _pair(which: int, most: int | None) -> str:
    infinite = resource.RLIM_INFINITY
    pair = [value if most is None or value == infinite else min(value, most) for value in resource.getrlimit(which)]
    if most is not None:
        pair = [most if value == infinite else value for value in pair]
    return ":".join(str(value) for value in pair)
