"""A spawner for JupyterHub: each user's server is an interactive session of a pool.

In ``jupyterhub_config.py``: ``c.JupyterHub.spawner_class = "gpupool.jupyter.spawner.GpupoolSpawner"``. Requires
``gpupool[jupyterhub]``.

The server's port is chosen on its node by a small program that then becomes the server, and the pool tells on which
port it listens. The state of a spawner is the id of its workload, so a new hub finds the servers of an earlier one.
"""

from __future__ import annotations

import asyncio
import html
import ipaddress
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from tornado.web import HTTPError
from traitlets import Callable as CallableTrait
from traitlets import Dict, Enum, Integer, List, Unicode, Union, default

from gpupool.client import Client, Job
from gpupool.client.files.port_forward import Forwarder
from gpupool.client.transport.endpoint import resolve_endpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_duration

T = TypeVar("T")

HUB_LABEL, SERVER_LABEL = "jupyterhub", "jupyterhub-server"
DIRECT, TUNNEL = "direct", "tunnel"
LOOPBACK, ALL_ADDRESSES = "127.0.0.1", "0.0.0.0"  # noqa: S104 - servers check each request with the hub
POLL_S, MAX_POLL_S, POLL_GROWTH = 0.3, 5.0, 1.5
STOP_MARGIN_S = 60  # for the start of the server, after a wait of start_timeout in the queue
LAST_LINES = 5
MAX_THREADS = 16
STARTING_PERCENT, LISTENING_PERCENT = 50, 90

# The program that chooses the port: ADDRESS COMMAND... Another program can only bind the port while it is reserved if
# it allows to share addresses, as Jupyter's server does.
LAUNCHER = """\
import os, random, socket, sys
from urllib.parse import urlsplit
address, command = sys.argv[1], sys.argv[2:]
for attempt in range(1000):
    reserved, port = socket.socket(), random.randrange(10000, 20000)
    try:
        reserved.bind((address, port))
        break
    except OSError:
        reserved.close()
else:
    sys.exit("No port from 10000 to 19999 is free.")
reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
reserved.set_inheritable(True)
url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
os.environ["JUPYTERHUB_SERVICE_URL"] = url._replace(netloc=f"{address}:{port}").geturl()
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""


class ServerNotStartedError(HTTPError):
    """A server could not be started. JupyterHub shows the sentence to the user."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(status, message.replace("%", "%%"))
        self.jupyterhub_message = message


class GpupoolSpawner(Spawner):  # type: ignore[misc]  # JupyterHub has no types
    """Starts the servers of users in a pool."""

    url = Unicode("", help="Address of a pool over the network (https://...); empty: the pool of this machine.").tag(
        config=True
    )
    socket_path = Unicode("", help="API socket of a pool on this machine; empty: the usual one.").tag(config=True)
    fingerprint = Unicode("", help="SHA-256 of the certificate of the pool at ``url``.").tag(config=True)
    ca_file = Unicode("", help="File with the authority of the certificate of the pool at ``url``.").tag(config=True)
    token = Union(
        [Unicode(), CallableTrait()],
        help="Token for the pool at ``url``, or a function of the spawner that returns one: with a token for each "
        "user, servers belong to the pool's users and use their projects. Default: the variable GPUPOOL_TOKEN.",
    ).tag(config=True)
    sizes = Dict(
        {"0.1 of a GPU": {"fraction": "0.1"}, "1 GPU": {"gpus": 1}, "No GPU": {"gpus": 0}},
        help="The sizes from which users choose, by name: options of ``gpupool.Client.submit``. The first is preset.",
    ).tag(config=True)
    projects = List(
        Unicode(), help="The projects from which users choose; empty: always the pool's default project."
    ).tag(config=True)
    submit_options = Dict(
        help="More options of ``gpupool.Client.submit`` for all servers: image, idle_timeout, volumes, ..."
    ).tag(config=True)
    workdir = Unicode(
        "",
        help="Folder in which servers start; {username} is replaced. Default: the home folder of the hub's account, "
        "or with ``url`` the pool's default.",
    ).tag(config=True)
    python = Unicode("python3", help="Python on the nodes that chooses the port of a server.").tag(config=True)
    connect = Enum(
        (DIRECT, TUNNEL),
        DIRECT,
        help="How the hub reaches a server: directly at its node's address, or by a tunnel through the pool. A tunnel "
        "ends with the hub's process, and begins again with the next.",
    ).tag(config=True)
    hub_name = Unicode(help="Name of this hub in labels of workloads; default: its machine and port.").tag(config=True)
    launch_timeout = Integer(
        180, help="Seconds that a server may take from the start of its program until it listens on its port."
    ).tag(config=True)

    _clients: ClassVar[dict[tuple[str, ...], Client]] = {}
    _threads: ClassVar[ThreadPoolExecutor] = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="gpupool")

    workload = ""  # its id while there is a server
    _port = 0  # on which the server listens on its node
    _tunnelled = False
    _forwarder: Forwarder | None = None

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        return 3600  # a wait in the queue is part of the start

    @default("http_timeout")
    def _default_http_timeout(self) -> int:
        return 60

    @default("hub_name")
    def _default_hub_name(self) -> str:
        return f"{socket.gethostname()}:{self.hub.port}{self.hub.base_url}"

    @default("options_form")
    def _default_options_form(self) -> Callable[[Spawner], str]:
        return lambda spawner: spawner.form()

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[[Mapping[str, list[str]]], dict[str, str]]:
        return lambda data: {name: data[name][0] for name in ("size", "project") if data.get(name)}

    # The request

    def form(self) -> str:
        """Return the form in which a user chooses size and project; empty if there is nothing to choose."""
        selects = [_select("size", "Size", list(self.sizes)), _select("project", "Project", list(self.projects))]
        return "\n".join(text for text in selects if text)

    def request(self) -> tuple[list[str], dict[str, Any]]:
        """Return the command of the server, and the options of ``Client.submit``.

        Raises ``ServerNotStartedError`` for a size or project that is not offered: options can also come from the
        hub's API.
        """
        size = _chosen("size", self.user_options, list(self.sizes))
        project = _chosen("project", self.user_options, self.projects)
        given: Any = self.sizes.get(size, {})
        options: dict[str, Any] = self.submit_options | given
        options |= {
            "kind": "interactive",
            "restart": "never",
            "labels": {**options.get("labels", {}), **self._labels()},
        }
        options.setdefault("name", self._workload_name())
        options.setdefault("wait", max(self.start_timeout - self.launch_timeout - STOP_MARGIN_S, 0))
        if project:
            options["project"] = project
        if self.workdir:
            options["workdir"] = self.format_string(self.workdir)
        elif not self.url and "image" not in options:
            options.setdefault("workdir", os.path.expanduser("~"))  # noqa: PTH111 - text is needed
        options["env"] = {**options.get("env", {}), **{name: str(value) for name, value in self.get_env().items()}}
        return [self.python, "-c", LAUNCHER, self._bind_address(), *self.cmd, *self.get_args()], options

    def get_args(self) -> list[str]:
        """Return the arguments of the server. The pool decides which account runs it."""
        return [*super().get_args(), "--allow-root"]

    def _workload_name(self) -> str:
        text = "-".join(filter(None, ("jupyter", self.user.name, self.name)))
        return re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:60].strip("-.")

    def _labels(self) -> dict[str, str]:
        return {HUB_LABEL: self.hub_name[:200], SERVER_LABEL: f"{self.user.name}/{self.name}"[:200]}

    def _bind_address(self) -> str:
        """Return the address on which the server listens: the loopback address if the hub reaches it there."""
        if self.ip not in {"", LOOPBACK}:
            return str(self.ip)
        return LOOPBACK if self.connect == TUNNEL or self._alone else ALL_ADDRESSES

    _alone = True  # whether all nodes are this machine

    # Start

    async def start(self) -> tuple[str, int]:
        """Submit the server, wait until it listens, and return its address and port."""
        try:
            return await self._start()
        except GpupoolError as error:
            raise ServerNotStartedError(f"{error.message} [{error.code}] {error.hint}".strip()) from error

    async def _start(self) -> tuple[str, int]:
        client = self._client()
        self._alone = not self.url and all(_is_own(node.address or LOOPBACK) for node in await self._call(client.nodes))
        command, options = self.request()
        await self._call(lambda: [job.cancel(force=True) for job in self._servers()])  # of a hub that was killed
        job = await self._call(lambda: client.submit(command, **options))
        self.workload = job.id
        self.log.info("%s is workload %s", self._log_name, job.id)
        node = await self._await_start()
        await self._await_port()
        if self.connect == TUNNEL:
            return await self._open_tunnel()
        address = await self._call(lambda: client.node(node).address)
        address = self._reachable(address)
        self._check_hub_address(node, address)
        return address, self._port

    async def _await_start(self) -> str:
        """Wait in the queue; return the node. The hub limits the time, and before it the pool does."""
        pause = POLL_S
        while True:
            view = await self._call(lambda: self._client().detail(self.workload))
            if view.state.final:
                raise ServerNotStartedError(await self._call(self._describe_end))
            if view.state == "running" and view.node:
                return view.node
            await asyncio.sleep(pause)
            pause = min(pause * POLL_GROWTH, MAX_POLL_S)

    async def _await_port(self) -> None:
        """Wait until the server listens. Its port is the first, since it is the oldest process."""
        deadline = monotonic() + self.launch_timeout
        while True:
            try:
                ports = await self._call(lambda: self._client().ports(self.workload))
            except GpupoolError as error:
                if error.code not in {ErrorCode.WRONG_STATE, ErrorCode.NODE_UNREACHABLE}:
                    raise
                ports = []
            if ports:
                self._port = ports[0].port
                return
            if await self.poll() is not None:
                raise ServerNotStartedError(await self._call(self._describe_end))
            if monotonic() > deadline:
                output = await self._call(self._output)
                raise ServerNotStartedError(f"The server did not listen within {self.launch_timeout} s. {output}")
            await asyncio.sleep(POLL_S)

    def _describe_end(self) -> str:
        """Return why the workload ended, with its last output."""
        view = self._client().detail(self.workload)
        message = view.replicas[0].message if view.replicas else ""
        message = message or (view.reason.message if view.reason else "") or f"{view.name} {view.state}"
        status = "" if view.exit_status is None else f" (exit status {view.exit_status})"
        return f"The server did not start: {message.rstrip('.')}{status}. {self._output()}".strip()

    def _output(self) -> str:
        try:
            chunks = list(self._client().logs(self.workload, tail=LAST_LINES))
        except GpupoolError:
            return ""
        text = b"".join(chunk.data for chunk in chunks).decode(errors="replace").strip()
        return f"Its last output: {text[-1000:]}" if text else ""

    def _reachable(self, address: str) -> str:
        """Return the address of a node for the hub. A pool of one machine can have a loopback address only."""
        if self._alone:
            return LOOPBACK
        if _is_loopback(address or LOOPBACK) and self.url:
            return urlsplit(self.url).hostname or LOOPBACK
        return address or LOOPBACK

    def _check_hub_address(self, node: str, address: str) -> None:
        """Raise ``ServerNotStartedError`` if the server asks a hub on its own machine although the hub is not there."""
        hub = urlsplit(self.get_env()["JUPYTERHUB_API_URL"]).hostname or ""
        if _is_loopback(hub) and not _is_own(address):
            raise ServerNotStartedError(
                f"The server runs on node {node}, which cannot reach the hub at {hub}. The administrator must set "
                "c.JupyterHub.hub_ip and c.JupyterHub.hub_connect_ip to an address of the hub's machine.",
                500,
            )

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the wait reason while the server waits in the queue, and the steps of its start."""
        said = ""
        while True:
            percent, message = await self._call(self._progress)
            if message != said:
                said = message
                yield {"progress": percent, "message": message}
            await asyncio.sleep(1.0)

    def _progress(self) -> tuple[int, str]:
        if not self.workload:
            return 1, "The server is submitted to the pool"
        try:
            why = self._client().why(self.workload)
            if why.state == "running":
                return STARTING_PERCENT, "The server's program has started"
            if why.state != "queued":
                return STARTING_PERCENT, f"The server is {why.state}"
        except GpupoolError as error:
            return 1, error.message
        position = f", position {why.position}" if why.position else ""
        estimate = f"; starts in about {format_duration(why.estimate_s)}" if (why.estimate_s or 0) >= 1 else ""
        return 10, f"Waiting{position}: {why.sentence.rstrip('.')}{estimate}"

    # State

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over the server of an earlier hub process."""
        super().load_state(state)
        self.workload = str(state.get("workload", ""))
        self._port = int(state.get("port", 0))
        self._tunnelled = bool(state.get("tunnelled"))

    def get_state(self) -> dict[str, Any]:
        """Return the workload, and how the hub reaches it."""
        state: dict[str, Any] = super().get_state()
        own = {"workload": self.workload, "port": self._port, "tunnelled": self._tunnelled}
        return state | own if self.workload else state

    def clear_state(self) -> None:
        """Forget the server."""
        super().clear_state()
        self.workload, self._port, self._tunnelled = "", 0, False

    async def poll(self) -> int | None:
        """Return None while the server is queued or runs, or while that is not known; else its exit status."""
        if not self.workload:
            return None if self._start_pending else 0
        try:
            view = await self._call(lambda: self._client().detail(self.workload))
        except GpupoolError as error:
            if error.code is ErrorCode.UNKNOWN_WORKLOAD:
                return 1
            self.log.warning("The pool does not tell the state of %s: %s", self._log_name, error.message)
            return None  # the hub would stop the server
        if not view.state.final:
            return None
        if view.reason is not None and not self._start_pending:
            self.log.info("%s %s: %s", self._log_name, view.state, view.reason.message)
        return 1 if view.exit_status is None else view.exit_status

    async def stop(self, now: bool = False) -> None:
        """Stop the server (with ``now`` without a grace period), and return when it has ended."""
        if self._forwarder is not None:
            await self._forwarder.close()
            self._forwarder = None
        jobs = await self._call(self._servers)
        await self._call(lambda: [job.cancel(force=now) for job in jobs])
        pause = POLL_S
        for job in jobs:
            while not await self._call(job.done):
                await asyncio.sleep(pause)
                pause = min(pause * POLL_GROWTH, MAX_POLL_S)

    def _servers(self) -> list[Job]:
        """Return the workloads of this server that have not ended, also one of which the hub does not know the id."""
        found = self._client().list(labels=self._labels())
        if self.workload and self.workload not in {job.id for job in found}:
            job = self._client().get(self.workload)  # of a hub with another name
            found += [] if job.view.state.final else [job]
        return found

    # Tunnels

    async def get_url(self) -> str:
        """Return the server's address. A hub asks for it when it has started again."""
        url = str(await super().get_url())
        if not self._tunnelled or self._forwarder is not None:
            return url
        address, port = await self._open_tunnel(urlsplit(url).port or 0)
        return urlsplit(url)._replace(netloc=f"{address}:{port}").geturl()

    async def _open_tunnel(self, wanted: int = 0) -> tuple[str, int]:
        """Listen on a port of this machine, if possible the wanted one, for the server's port."""
        endpoint = await self._call(lambda: resolve_endpoint(**self._place()))
        self._forwarder = Forwarder(endpoint, self.workload, 0, self._report_tunnel, activity=False)
        try:
            [(port, _)] = await self._forwarder.listen([(wanted, self._port)])
        except GpupoolError:
            [(port, _)] = await self._forwarder.listen([(0, self._port)])
        self._tunnelled = True
        return LOOPBACK, port

    def _report_tunnel(self, text: str) -> None:
        self.log.debug("Tunnel of %s: %s", self._log_name, text)

    # The pool

    def _place(self) -> dict[str, str | None]:
        """Return the arguments of ``Client`` for the pool."""
        token = self.token(self) if callable(self.token) else self.token
        return {
            "socket_path": self.socket_path or None,
            "url": self.url or None,
            "token": token or None,
            "fingerprint": self.fingerprint or None,
            "ca_file": self.ca_file or None,
        }

    def _client(self) -> Client:
        """Return the client of the pool; spawners with the same token share one."""
        place = self._place()
        key = tuple(str(value) for value in place.values())
        if key not in self._clients:
            self._clients[key] = Client(**place)  # type: ignore[arg-type]  # by name
        return self._clients[key]

    async def _call(self, function: Callable[[], T]) -> T:
        """Call a function that waits for the pool, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _select(name: str, label: str, choices: list[str]) -> str:
    if len(choices) < 2:
        return ""
    options = "".join(f"<option>{html.escape(choice)}</option>" for choice in choices)
    return (
        f'<div class="form-group"><label for="{name}">{label}</label>'
        f'<select class="form-control form-select" id="{name}" name="{name}">{options}</select></div>'
    )


def _chosen(name: str, options: Mapping[str, Any], choices: list[str]) -> str:
    """Return the user's choice, else the first; empty if there are no choices."""
    if not choices:
        return ""
    choice = options.get(name) or choices[0]
    if choice not in choices:
        raise ServerNotStartedError(
            f"The {name} '{str(choice)[:80]}' is not offered here. Choose one of: {', '.join(choices)}.", 400
        )
    return str(choice)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_own(host: str) -> bool:
    """Return whether an address (or name) belongs to this machine: only then a socket can be bound to it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(address)
    except OSError:
        return False
    return True
