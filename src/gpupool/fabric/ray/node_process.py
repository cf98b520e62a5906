"""Ray's own processes on one machine, in one supervised process: ``python -m gpupool.fabric.ray.node_process``.

It starts the GCS (on the leading head) and the raylet. It restarts a GCS that died, with its records. When another
process dies or another head leads, it ends with all its processes, and the supervisor starts it again. Ray's processes
get a parent-death signal; others are found by a variable in their environment and killed at the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.fabric.local.termination import end_programs
from gpupool.fabric.ray.environment import (
    MARKER,
    NODE_LABEL,
    START_TIMEOUT_S,
    RayPorts,
    Secrets,
    load,
    log_event,
    ray_variables,
    set_variables,
)
from gpupool.fabric.ray.head_selection import HeadFollower, HeadWatch
from gpupool.fabric.ray.relay import AGENT_SOCKET_VARIABLE, NODE_NAME_VARIABLE

EXIT_BROKEN = 1
OBJECT_STORE_BYTES = 75 << 20  # the minimum for Ray; it is not used
_LOOK_S = 0.5
_ASK_EVERY_S = 3.0
_ASK_WAIT_S = 3.0
_ALIVE_EVERY_S = 30.0
_DEAD_AFTER = 2  # consecutive answers in which the GCS lists this machine as dead
_HEAD_PAUSE_S = 1.0
_REFRESH_EVERY_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_GCS = "gcs_server"
_WORKER = Path(__file__).with_name("worker.py")  # a program of its own
_COMMAND_OF_AGENT = "_build_python_executable_command_memory_profileable"  # Ray's function for the start of a command
_WAIT_FOR_PARENT = """
import os, time
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(5)
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine's part in the cluster. ``head`` is None where the GCS runs, else its address (host, port)."""

    name: str
    address: str
    ports: RayPorts
    secrets: Secrets
    temp: Path
    storage: Path
    agent_socket: Path
    head: tuple[str, int] | None
    lead: Path | None = None  # file in which a head's control plane writes its lead; None: no other head


def main(argv: Sequence[str] | None = None) -> int:
    """Run Ray's processes until SIGTERM (0), or until one of them dies or another head leads (1)."""
    machine = _parse(argv)
    stop = _Stop()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kill_leftovers(machine.temp)
    follower = HeadFollower(machine.name, machine.secrets.folder, machine.head, machine.lead)
    watch = HeadWatch(follower, is_node=machine.lead is None and machine.head is not None)
    if not _wait_for_head(follower, stop):
        return _idle(machine, follower, stop)
    machine = replace(machine, head=follower.gcs)
    if taken := taken_ports(machine):
        log_event("ports are taken", address=machine.address, ports=taken)
        return EXIT_BROKEN
    _prepare(machine)
    watch.start()
    try:
        return _run(machine, stop, watch)
    except _StoppedError:
        return 0
    finally:
        watch.close()
        kill_leftovers(machine.temp)


class _StoppedError(Exception):
    """SIGTERM or SIGINT was received while Ray was being started."""


class _Stop:
    """A flag that SIGTERM or SIGINT was received."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _signum: int, _frame: object) -> None:
        self.asked = True


def _parse(argv: Sequence[str] | None) -> Machine:
    parser = argparse.ArgumentParser(prog="gpupool-ray", description="Ray's processes on one machine of a pool.")
    parser.add_argument("--name", required=True, help="the node's name in the pool")
    parser.add_argument("--address", required=True, help="this machine's address in the cluster")
    parser.add_argument("--first-port", type=int, required=True)
    parser.add_argument("--secrets", type=Path, required=True, help="folder of certificate, key and token")
    parser.add_argument("--temp", type=Path, required=True, help="Ray's folder for sockets and logs")
    parser.add_argument("--agent-socket", type=Path, required=True)
    parser.add_argument("--head", metavar="HOST:PORT", help="the GCS to join; left out on heads")
    parser.add_argument("--lead-file", type=Path, help="file in which the control plane reports whether it leads")
    options = parser.parse_args(argv)
    host, _, port = (options.head or "").rpartition(":")
    return Machine(
        options.name,
        options.address,
        RayPorts(options.first_port),
        Secrets(options.secrets),
        options.temp,
        options.temp.with_name("gcs"),
        options.agent_socket,
        (host.strip("[]"), int(port)) if options.head else None,
        options.lead_file,
    )


def taken_ports(machine: Machine) -> list[int]:
    """Return ports of ours that are in use: Ray would need most of a minute to fail because of them."""
    return [port for port in machine.ports.fixed(head=machine.head is None) if not _free(machine.address, port)]


def _free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen(1)
        except OSError:
            return False
    return True


def _idle(machine: Machine, follower: HeadFollower, stop: _Stop) -> int:
    """End all programs on a machine that was removed from its cluster, then wait for the stop; return 0."""
    ended = False
    while not stop.asked:
        if not ended and (removal := follower.removed) is not None:
            try:
                asyncio.run(end_programs(machine.agent_socket))
            except (OSError, EOFError, ValueError) as error:
                log_event("programs not ended yet", error=repr(error)[:200])
            else:
                log_event("removed", why=removal.message, hint=removal.hint)
                ended = True
        time.sleep(_HEAD_PAUSE_S)
    return 0


def _wait_for_head(follower: HeadFollower, stop: _Stop) -> bool:
    """Wait until a head leads and listens, or this machine leads; return False when stopped or removed."""
    said, refresh_at = "", 0.0
    while not stop.asked and follower.removed is None:
        if time.monotonic() >= refresh_at:
            with contextlib.suppress(OSError):
                follower.refresh()  # the known heads may be outdated
            refresh_at = time.monotonic() + _REFRESH_EVERY_S
            if follower.removed is not None:
                return False
        known, head = follower.look()
        why = _deaf(head) if known and head else "" if known else "no head reports that it leads"
        if not why:
            follower.follow(head)
            return True
        if why != said:
            log_event("waiting for the head", address=f"{head[0]}:{head[1]}" if head else None, error=why)
        said = why
        time.sleep(_HEAD_PAUSE_S)
    return False


def _deaf(head: tuple[str, int]) -> str:
    """Return why a GCS cannot be reached; empty if it can."""
    try:
        socket.create_connection(head, timeout=5.0).close()
    except OSError as error:
        return str(error)
    return ""


def _prepare(machine: Machine) -> None:
    """Create an empty folder, because old sessions are of no use, and set the variables.

    Ray opens its folder to all users, and its sockets allow running programs. So its parent folder is closed to others.
    """
    closed = machine.temp.parent
    closed.mkdir(mode=0o700, parents=True, exist_ok=True)
    if closed.stat().st_uid != os.geteuid() or closed.is_symlink():
        raise PermissionError(f"{closed} belongs to another user")
    closed.chmod(0o700)
    shutil.rmtree(machine.temp, ignore_errors=True)
    shutil.rmtree(machine.storage, ignore_errors=True)
    machine.temp.mkdir(mode=0o700)
    machine.storage.mkdir(mode=0o700)
    variables = ray_variables(machine.secrets, machine.temp)
    variables |= {AGENT_SOCKET_VARIABLE: str(machine.agent_socket), NODE_NAME_VARIABLE: machine.name}
    if machine.head is None:
        variables |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(machine.storage)}
    set_variables(variables)


class MembershipCheck:
    """The check if this machine still belongs to its cluster.

    A restarted head is a new cluster, which a raylet notices only after half a minute. A machine that the GCS has
    declared dead (it was frozen) only learns that when it asks.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._asked_at = self._looked_at = time.monotonic()
        self._dead = 0

    def why(self) -> str:
        """Return why not, or empty; query only now and then."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_EVERY_S:
            return ""
        gcs = self._node.get_gcs_client()
        try:
            gcs.internal_kv_exists(b"gpupool", b"gpupool", timeout=_ASK_WAIT_S)
            if now - self._looked_at >= _ALIVE_EVERY_S:
                self._looked_at = now
                self._look(gcs.get_all_node_info(timeout=_ASK_WAIT_S))
        except Exception as error:  # noqa: BLE001 - Ray's errors; wait for a GCS that is down
            if "WrongClusterID" in str(error):
                return "the head was restarted"
        finally:
            self._asked_at = time.monotonic()
        return "the head has removed this machine" if self._dead >= _DEAD_AFTER else ""

    def _look(self, nodes: dict[Any, Any]) -> None:
        own = next((info for found, info in nodes.items() if found.hex() == self._node.node_id), None)
        self._dead = 0 if own is not None and own.state == 0 else self._dead + 1


def _run(machine: Machine, stop: _Stop, watch: HeadWatch) -> int:
    try:
        node = _start(machine, stop)
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        log_event("ray cannot join", why=" ".join(str(error).split()), hint="install the head's Ray and Python here")
        return EXIT_BROKEN
    log_event("ray runs", name=machine.name, address=machine.address, pid=os.getpid())
    membership = MembershipCheck(node)
    try:
        while not stop.asked:
            time.sleep(_LOOK_S)
            _reap_orphans(node)
            if watch.moved:
                log_event("starting anew", why="removed from the pool" if watch.removed else "another head leads")
                return EXIT_BROKEN
            if machine.head is not None and (why := membership.why()):
                log_event("starting anew", why=why)
                return EXIT_BROKEN
            dead = {str(name): process.returncode for name, process in node.dead_processes()}
            if set(dead) == {_GCS}:
                log_event("starting the GCS again", exit_status=dead[_GCS])
                node.kill_gcs_server(check_alive=False)
                node.start_gcs_server()
            elif dead:
                log_event("ray broke", dead=dead)
                return EXIT_BROKEN
    finally:
        node.kill_all_processes(check_alive=False, allow_graceful=stop.asked)
    return 0


def _start(machine: Machine, stop: _Stop) -> Any:
    node: Any = load("ray._private.node").Node

    class Lean(node):  # type: ignore[misc]
        """A node without the dashboard server and the agents: they are not used, and need memory and time."""

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            """Skip the server."""

        def start_raylet(self, *places: Any, **options: Any) -> None:
            """Start it without its agents."""
            _persist_ports(self.get_session_dir_path(), self.node_id)
            setattr(load("ray._private.services"), _COMMAND_OF_AGENT, _placeholder_command)
            super().start_raylet(*places, **options)

        def start_ray_processes(self) -> None:
            """Start them and wait until the GCS knows the raylet: Ray gives up after 30 seconds."""
            super().start_ray_processes()
            _await_registered(self, stop)

    return Lean(_parameters(machine), head=machine.head is None, shutdown_at_exit=False, spawn_reaper=True)


def _persist_ports(session_dir: str, node_id: str) -> None:
    """Write the files from which the raylet reads the ports of its agents; -1 means a service that is not used.

    It waits 15 seconds for the agents to write them (``WaitForPersistedPort``) and dies if they are late.
    """
    raylet = load("ray._raylet")
    for name in (
        raylet.RUNTIME_ENV_AGENT_PORT_NAME,
        raylet.METRICS_AGENT_PORT_NAME,
        raylet.METRICS_EXPORT_PORT_NAME,
        raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    ):
        raylet.persist_port(session_dir, node_id, name, -1)


def _placeholder_command(*_component: Any, **_options: Any) -> list[str]:
    """Return the start of a command that waits for the end of its parent and ignores its arguments.

    The raylet ends if one of its agents (dashboard, runtime environments) cannot be started or ends. A real agent takes
    more than a second of CPU time to start, and listens on a port.
    """
    return [sys.executable, "-I", "-S", "-c", _WAIT_FOR_PARENT]


def _await_registered(node: Any, stop: _Stop) -> None:
    """Wait until the GCS knows the raylet. Raises ``RuntimeError`` if a process dies or on timeout."""
    services = load("ray._private.services")
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            services.get_node(node.gcs_address, node.node_id)
        except RuntimeError as error:
            dead = {str(name): process.returncode for name, process in node.dead_processes()}
            if dead or time.monotonic() >= deadline:
                raise RuntimeError(f"ray did not start: {dead or error}") from error
        else:
            return
        if stop.asked:
            raise _StoppedError
        time.sleep(_LOOK_S)


def _parameters(machine: Machine) -> Any:
    ports, workers = machine.ports, machine.ports.workers
    where: dict[str, Any] = {"gcs_server_port": ports.gcs} if machine.head is None else {}
    if machine.head is not None:
        host, port = machine.head
        where = {"gcs_address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    return load("ray._private.parameter").RayParams(
        **where,
        node_ip_address=machine.address,
        node_name=machine.name,
        node_manager_port=ports.node_manager,
        object_manager_port=ports.object_manager,
        min_worker_port=workers[0],
        max_worker_port=workers[1],
        setup_worker_path=str(_WORKER),
        object_store_memory=OBJECT_STORE_BYTES,
        num_cpus=0,
        num_gpus=0,
        memory=0,
        resources={},
        labels={NODE_LABEL: machine.name},
        temp_dir=str(machine.temp),
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
    )


def _reap_orphans(node: Any) -> None:
    """Reap adopted grandchildren; Ray reaps its own children."""
    ours = {info.process.pid for infos in node.all_processes.values() for info in infos}
    for pid in _children():
        if pid not in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()]
    except (OSError, ValueError):
        return []


def kill_leftovers(temp: Path) -> None:
    """Kill every Ray process that was started for this folder.

    Most are found by a variable in their environment; those that overwrite it, by their open files.
    """
    for _ in range(3):
        found = [pid for pid in _processes() if pid != os.getpid() and (_marked(pid, temp) or _uses(pid, temp))]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.1)


def _processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _marked(pid: int, temp: Path) -> bool:
    with contextlib.suppress(OSError):
        return f"{MARKER}={temp}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _uses(pid: int, temp: Path) -> bool:
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            files = (os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115 - the kernel's own text
            return any(file.startswith(f"{temp}/") for file in files)
    return False


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Ray's threads must not block the exit
