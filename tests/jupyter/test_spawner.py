"""Servers of JupyterHub in a pool: a real hub, and its servers asked over HTTP and WebSocket."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import PATIENCE_S, RealPool, eventually, fresh_pool
from jupyter_http import ask, execute
from servers import LIGHT_IMPORTS

from free_ports import free_port

pytestmark = pytest.mark.needs("jupyterhub", "jupyterlab")


class Hub:
    """A JupyterHub over a pool."""

    def __init__(self, pool: RealPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self.token = secrets.token_hex(16)
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}/hub/api"
        self.env = {
            **pool.env,
            "HUB_PORT": str(self.port),
            "HUB_UNUSED_PORT": str(free_port()),
            "HUB_FOLDER": str(folder),
            "HUB_TOKEN": self.token,
            "PYTHONPATH": LIGHT_IMPORTS,
        }

    def start(self) -> None:
        log = (self.folder / "hub.log").open("ab")
        command = [sys.executable, "-m", "jupyterhub", "-f", str(Path(__file__).with_name("hub_config.py"))]
        self.process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=log)
        assert eventually(self._answers), self.log()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return self.ask("proxy")[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "hub.log").read_text()[-6000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, body: object = None, method: str | None = None) -> tuple[int, Any]:
        if method is None:
            return ask(f"{self.api}/{path}", self.token, body)
        request = urllib.request.Request(f"{self.api}/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, None

    def spawn(self, user: str, **options: str) -> tuple[int, Any]:
        self.ask(f"users/{user}", {})
        return self.ask(f"users/{user}/server", options)

    def progress(self, user: str) -> Iterator[dict[str, Any]]:
        """Yield the messages of a start until it has ended."""
        request = urllib.request.Request(f"{self.api}/users/{user}/server/progress")
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    def server(self, user: str) -> str:
        """Return the address of a user's server once the hub says that it is ready."""

        def ready() -> bool:
            return bool(self.ask(f"users/{user}")[1].get("servers", {}).get("", {}).get("ready"))

        assert eventually(ready), self.log()
        prefix = f"/user/{user}/"
        assert eventually(lambda: prefix in self.ask("proxy")[1]), self.log()
        return f"{self.ask('proxy')[1][prefix]['target'].rstrip('/')}{prefix.rstrip('/')}"

    def workload(self, user: str) -> Any:
        with self.pool.client as client:
            [job] = client.list(labels={"jupyterhub-server": f"{user}/"})
            return job.detail()


@pytest.fixture(scope="module")
def pool() -> Iterator[RealPool]:
    with fresh_pool("2xT4") as made:
        yield made


@pytest.fixture(scope="module")
def hub(pool: RealPool) -> Iterator[Hub]:
    with tempfile.TemporaryDirectory(prefix="gphub-") as folder:
        made = Hub(pool, Path(folder))
        made.start()
        yield made
        made.kill()


def test_server_shows_why_it_waits_runs_in_a_slice_and_outlives_the_hub(hub: Hub, pool: RealPool) -> None:
    pool("submit", "all", "-n", "2", "--", "sleep", "1000")
    assert pool.becomes("all", "running")
    assert hub.spawn("ada", size="small")[0] == 202
    messages = []
    for event in hub.progress("ada"):
        messages.append(event["message"])
        if "Waiting" in event["message"]:
            pool("stop", "--force", "all", ok=False)
    assert any("needs 0.10 GPU" in message for message in messages), messages
    assert event["ready"], messages

    server, workload = hub.server("ada"), hub.workload("ada")
    assert workload.kind == "interactive"
    assert workload.name == "jupyter-ada"
    assert ask(f"{server}/api/status")[0] == 403
    code = "import os; print(os.environ['GPUPOOL_GPU_SHARE'])"
    assert execute(server, hub.token, code) == "0.10\n"

    hub.kill()
    assert ask(f"{server}/api")[0] == 200
    hub.start()
    assert hub.server("ada") == server
    assert hub.workload("ada").id == workload.id
    assert ask(f"{server}/api/status", hub.token)[1]["kernels"] == 1

    assert hub.ask("users/ada/server", method="DELETE")[0] in {202, 204}
    assert pool.becomes(workload.id, "stopped")
    assert eventually(lambda: not hub.ask("users/ada")[1]["servers"])


def test_tunnel_begins_again_with_the_next_hub(hub: Hub, pool: RealPool) -> None:
    assert hub.spawn("tess", size="none")[0] in {201, 202}
    server, workload = hub.server("tess"), hub.workload("tess")
    with pool.client as client:
        ports = [found.port for found in client.ports(workload.id)]
    assert f":{ports[0]}/" not in server
    assert execute(server, hub.token, "print(1 + 1)") == "2\n"
    hub.kill()
    hub.start()
    assert ask(f"{hub.server('tess')}/api/status", hub.token)[1]["kernels"] == 1
    assert hub.ask("users/tess/server", method="DELETE")[0] in {202, 204}
    assert pool.becomes(workload.id, "stopped")


def test_server_that_ends_is_noticed_with_its_reason(hub: Hub) -> None:
    status, _ = hub.spawn("mia", size="none")
    if status == 202:
        *_, last = hub.progress("mia")
        assert last["failed"]
        assert "no-such-server: No such file or directory" in last["message"]
    assert status in {202, 503}
    assert "no-such-server: No such file or directory" in hub.log()


def test_size_that_is_not_offered_is_refused(hub: Hub, pool: RealPool) -> None:
    status, said = hub.spawn("eve", size="everything")
    if status == 202:
        *_, said = hub.progress("eve")
        assert said["failed"]
    assert "The size 'everything' is not offered here. Choose one of: small, both, none." in json.dumps(said)
    with pool.client as client:
        assert not client.list(labels={"jupyterhub-server": "eve/"}, all=True)


def test_form_offers_sizes_and_projects() -> None:
    from gpupool.jupyter.spawner import GpupoolSpawner

    spawner = GpupoolSpawner(sizes={"<b>": {}, "1 GPU": {"gpus": 1}}, projects=["vision"])
    assert "<option>&lt;b&gt;</option><option>1 GPU</option>" in spawner.form()
    assert "Project" not in spawner.form()
    assert spawner.run_options_from_form({"size": ["1 GPU"], "other": ["x"]}) == {"size": "1 GPU"}
    assert GpupoolSpawner(sizes={"1 GPU": {"gpus": 1}}).form() == ""


def test_launcher_reserves_the_port_until_the_server_listens() -> None:
    from gpupool.jupyter.spawner import LAUNCHER

    program = """\
import os, socket, urllib.parse
address = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
try:
    socket.socket().bind((address.hostname, address.port))
except OSError:
    socket.create_server((address.hostname, address.port))
    print(address.path)
"""
    command = [sys.executable, "-c", LAUNCHER, "127.0.0.1", sys.executable, "-c", program]
    env = {**os.environ, "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/ada/"}
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "/user/ada/\n"
