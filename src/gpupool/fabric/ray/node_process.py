"""Ray's own processes on one machine, as one process for the supervisor: ``python -m gpupool.fabric.ray.node_process``.

It starts GCS (on the head that leads) and raylet, starts a GCS that died again on its records, and ends, with all that
it started, when anything else dies or another head leads: the supervisor starts it anew. Ray's programs hang on it by
the kernel (parent-death signals); what got away is found by a variable in its environment and killed first.
"""

from __future__ import annotations

import argparse
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

from gpupool.fabric.ray.following import Following, Watch
from gpupool.fabric.ray.relay import AGENT_SOCKET_VARIABLE, NODE_NAME_VARIABLE
from gpupool.fabric.ray.surroundings import MARKER, NODE_LABEL, Ports, Secrets, load, put_on, ray_variables, say

EXIT_BROKEN = 1
OBJECT_STORE_BYTES = 75 << 20  # the least that Ray takes; nothing is put into it
_LOOK_S = 0.5
_ASK_EVERY_S = 3.0
_ASK_WAIT_S = 3.0
_ALIVE_EVERY_S = 30.0
_DEAD_AFTER = 2  # times that the GCS calls this machine dead
_HEAD_PAUSE_S = 1.0
_REFRESH_EVERY_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_GCS = "gcs_server"


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine is to the cluster. ``head`` is None where the GCS runs, else its place as (host, port)."""

    name: str
    address: str
    ports: Ports
    secrets: Secrets
    temp: Path
    storage: Path
    agent_socket: Path
    head: tuple[str, int] | None
    lead: Path | None = None  # where the control plane of a head says whether it leads; None: no other head can


def main(argv: Sequence[str] | None = None) -> int:
    """Run Ray's processes until SIGTERM (0), or until one of them dies or another head leads (1)."""
    machine = _parse(argv)
    stop = _Stop()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kill_leftovers(machine.temp)
    following = Following(machine.name, machine.secrets.folder, machine.head, machine.lead)
    watch = Watch(following, is_node=machine.lead is None and machine.head is not None)
    if not _wait_for_head(following, stop):
        return 0
    machine = replace(machine, head=following.gcs)
    if taken := taken_ports(machine):
        say("ports are taken", address=machine.address, ports=taken)
        return EXIT_BROKEN
    _prepare(machine)
    watch.start()
    try:
        return _run(machine, stop, watch)
    finally:
        watch.close()
        kill_leftovers(machine.temp)


class _Stop:
    """Whether SIGTERM or SIGINT came."""

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
    parser.add_argument("--lead-file", type=Path, help="where the control plane says whether it leads")
    options = parser.parse_args(argv)
    host, _, port = (options.head or "").rpartition(":")
    return Machine(
        options.name,
        options.address,
        Ports(options.first_port),
        Secrets(options.secrets),
        options.temp,
        options.temp.with_name("gcs"),
        options.agent_socket,
        (host.strip("[]"), int(port)) if options.head else None,
        options.lead_file,
    )


def taken_ports(machine: Machine) -> list[int]:
    """Ports of ours that somebody else listens on: Ray would take most of a minute to fail of it."""
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


def _wait_for_head(following: Following, stop: _Stop) -> bool:
    """Wait until one leads, and something listens there, or it is this machine; False when told to stop."""
    said, refresh_at = "", time.monotonic() + _REFRESH_EVERY_S
    while not stop.asked:
        known, head = following.look()
        why = _deaf(head) if known and head else "" if known else "no head says that it leads"
        if not why:
            following.follow(head)
            return True
        if why != said:
            say("waiting for the head", address=f"{head[0]}:{head[1]}" if head else None, error=why)
        said = why
        if time.monotonic() >= refresh_at:
            with contextlib.suppress(OSError):
                following.refresh()  # those that are known may all be others by now
            refresh_at = time.monotonic() + _REFRESH_EVERY_S
        time.sleep(_HEAD_PAUSE_S)
    return False


def _deaf(head: tuple[str, int]) -> str:
    """Why nothing can be said to a GCS, or empty."""
    try:
        socket.create_connection(head, timeout=5.0).close()
    except OSError as error:
        return str(error)
    return ""


def _prepare(machine: Machine) -> None:
    """An empty folder, for sessions of before are of no use, and the variables.

    Ray opens its folder to everybody, and whoever reaches the sockets in it can have programs run: so it is kept in
    one that nobody else may enter.
    """
    closed = machine.temp.parent
    closed.mkdir(mode=0o700, parents=True, exist_ok=True)
    if closed.stat().st_uid != os.geteuid() or closed.is_symlink():
        raise PermissionError(f"{closed} belongs to somebody else")
    closed.chmod(0o700)
    shutil.rmtree(machine.temp, ignore_errors=True)
    shutil.rmtree(machine.storage, ignore_errors=True)
    machine.temp.mkdir(mode=0o700)
    machine.storage.mkdir(mode=0o700)
    variables = ray_variables(machine.secrets, machine.temp)
    variables |= {AGENT_SOCKET_VARIABLE: str(machine.agent_socket), NODE_NAME_VARIABLE: machine.name}
    if machine.head is None:
        variables |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(machine.storage)}
    put_on(variables)


class Doubt:
    """Whether this machine still belongs to the cluster that it believes to belong to.

    A head that was started anew is another cluster, which a raylet learns half a minute late; and one that the GCS has
    given up (it was frozen) is only told when it asks.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._asked_at = self._looked_at = time.monotonic()
        self._dead = 0

    def why(self) -> str:
        """Why not, or empty; asks now and then."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_EVERY_S:
            return ""
        gcs = self._node.get_gcs_client()
        try:
            gcs.internal_kv_exists(b"gpupool", b"gpupool", timeout=_ASK_WAIT_S)
            if now - self._looked_at >= _ALIVE_EVERY_S:
                self._looked_at = now
                self._look(gcs.get_all_node_info(timeout=_ASK_WAIT_S))
        except Exception as error:  # noqa: BLE001 - Ray's; a GCS that is away is waited for
            if "WrongClusterID" in str(error):
                return "the head was started anew"
        finally:
            self._asked_at = time.monotonic()
        return "the head has given this machine up" if self._dead >= _DEAD_AFTER else ""

    def _look(self, nodes: dict[Any, Any]) -> None:
        own = next((info for found, info in nodes.items() if found.hex() == self._node.node_id), None)
        self._dead = 0 if own is not None and own.state == 0 else self._dead + 1


def _run(machine: Machine, stop: _Stop, watch: Watch) -> int:
    try:
        node = _start(machine)
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        say("ray cannot join", why=" ".join(str(error).split()), hint="install the head's Ray and Python here")
        return EXIT_BROKEN
    say("ray runs", name=machine.name, address=machine.address, pid=os.getpid())
    doubt = Doubt(node)
    try:
        while not stop.asked:
            time.sleep(_LOOK_S)
            _reap_orphans(node)
            if watch.moved:
                say("starting anew", why="another head leads")
                return EXIT_BROKEN
            if machine.head is not None and (why := doubt.why()):
                say("starting anew", why=why)
                return EXIT_BROKEN
            dead = {str(name): process.returncode for name, process in node.dead_processes()}
            if set(dead) == {_GCS}:
                say("starting the GCS again", exit_status=dead[_GCS])
                node.kill_gcs_server(check_alive=False)
                node.start_gcs_server()
            elif dead:
                say("ray broke", dead=dead)
                return EXIT_BROKEN
    finally:
        node.kill_all_processes(check_alive=False, allow_graceful=stop.asked)
    return 0


def _start(machine: Machine) -> Any:
    node: Any = load("ray._private.node").Node

    class Lean(node):  # type: ignore[misc]
        """Without the server of the dashboard: nobody asks it, and it is a hundred megabytes."""

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            """Leave it out."""

    return Lean(_parameters(machine), head=machine.head is None, shutdown_at_exit=False, spawn_reaper=True)


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
        runtime_env_agent_port=ports.runtime_env_agent,
        dashboard_agent_listen_port=ports.agent_http,
        metrics_agent_port=ports.agent_grpc,
        metrics_export_port=ports.metrics,
        min_worker_port=workers[0],
        max_worker_port=workers[1],
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
    """Wait for grandchildren that came to us; Ray's own children are left for Ray to ask after."""
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
    """End every process of Ray's that was started for this folder.

    Those are told by a variable; the ones that write their title over their environment by the files they have open.
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
            files = (os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115 - as the kernel says it
            return any(file.startswith(f"{temp}/") for file in files)
    return False


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Ray's threads must not keep it
