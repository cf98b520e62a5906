"""A whole pool for tests: a real agent, and a control plane on a unix socket and over TLS in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
from fastapi import FastAPI
from node_harness import PATIENCE_S, Node, eventually, fresh_node

from gpupool.api.app import create_app
from gpupool.api.server.server import BoundAddresses, ListenConfig, serve
from gpupool.api.server.tls import CertificateFiles, ensure_self_signed
from gpupool.domain.protocol.fencing import SoleLeadership
from gpupool.fabric.machines import MachinesFabric, StaticDirectory
from gpupool.services.clock import SteadyClock
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports.adapters import Ports
from gpupool.store import open_store

NOBODY = 65534
ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
Json = dict[str, Any]


class LivePool:
    """A control plane over one agent; it can be stopped and started again, as a restart does."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root = node.root
        self.socket = node.root / "api.sock"
        self.tls = CertificateFiles(node.root / "cert.pem", node.root / "key.pem")
        self.fingerprint = ensure_self_signed(self.tls, "127.0.0.1")
        self.port = 0
        self.app: FastAPI | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def up(self) -> LivePool:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE_S), self._failure
        with self.http() as http:
            eventually(lambda: http.get("/v1/pool").json()["nodes_up"] == 1, "the node is up")
        return self

    def down(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._run(ready))
        except BaseException as error:  # noqa: BLE001 - the test's thread shows it
            self._failure = error

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        store = await open_store(self.root / "pool.db")
        clock = SteadyClock()
        fabric = MachinesFabric(StaticDirectory({"n1": self.node.run / "agent.sock"}), SoleLeadership(), clock)
        ports = Ports(store, fabric, clock, secrets.randbits, asyncio.sleep)
        info = PoolInfo("0", store.pool_id, "user", SteadyClock().now(), str(self.root), None, os.geteuid())
        pool = Pool(ports, info)
        await pool.start()

        def bound(where: BoundAddresses) -> None:
            self.port = int((where.listen or "").rpartition(":")[2])
            ready.set()

        try:
            self.app = create_app(pool.services)
            listen = ListenConfig("127.0.0.1", self.port, self.tls)
            await serve(
                self.app, socket_path=self.socket, socket_mode=0o666, listen=listen, stop=self._stop, ready=bound
            )
        finally:
            await pool.close()

    # Asking

    def http(self) -> httpx2.Client:
        """Return a client of the owner on the unix socket."""
        transport = httpx2.HTTPTransport(uds=str(self.socket))
        return httpx2.Client(transport=transport, base_url="http://pool", timeout=PATIENCE_S)

    def remote(self, token: str | None = None) -> httpx2.Client:
        """Return a client over TLS."""
        import ssl

        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        context = ssl.create_default_context(cafile=self.tls.certificate)
        return httpx2.Client(verify=context, base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def token(self, **wanted: Any) -> Json:
        with self.http() as http:
            answer = http.post("/v1/tokens", json=wanted)
        assert answer.status_code == 201, answer.text
        made: Json = answer.json()
        return made

    def person(self, name: str, role: str) -> httpx2.Client:
        """Return a client over TLS as a user with this role."""
        with self.http() as http:
            assert http.put(f"/v1/users/{name}", json={"role": role}).status_code == 200
        return self.remote(self.token(user=name, role=role)["secret"])

    def as_uid(self, uid: int, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """Call the API once on the unix socket as a process of another account; return the status and the JSON."""
        asked = json.dumps([str(self.socket), method, path, body])
        script = _ASK.replace("UID", str(uid))
        done = subprocess.run([sys.executable, "-I", "-c", script, asked], capture_output=True, check=True)
        status, text = json.loads(done.stdout)
        return status, json.loads(text) if text else None


_ASK = """
import encodings.idna, http.client, json, os, socket, sys
os.setgroups([])
os.setgid(UID)
os.setuid(UID)
path, method, target, body = json.loads(sys.argv[1])
connection = http.client.HTTPConnection("pool")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
payload = None if body is None else json.dumps(body)
connection.request(method, target, payload, {"content-type": "application/json"})
answer = connection.getresponse()
print(json.dumps([answer.status, answer.read().decode()]))
"""


def end_everything(http: httpx2.Client) -> None:
    """Stop everything that a test has left."""
    for view in http.get("/v1/workloads", params={"limit": 1000}).json()["workloads"]:
        http.post(f"/v1/workloads/{view['id']}/stop", json={"force": True})
        http.get(f"/v1/workloads/{view['id']}/wait")


def shell(line: str, **changes: Any) -> Json:
    """Return a submission that runs a shell line."""
    return {"command": ["sh", "-c", line], "env": ENV, "workdir": "/tmp", "gpus": {"fraction": 0.1}, **changes}


@contextlib.contextmanager
def live_pool() -> Iterator[LivePool]:
    with fresh_node() as node:
        pool = LivePool(node).up()
        try:
            yield pool
        finally:
            pool.down()
