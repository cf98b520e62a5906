"""``gpupool notebook`` and ``gpupool open``: JupyterLab and other servers of workloads, in the browser."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from e2e_pool import RealPool, eventually, fresh_pool
from jupyter_http import ask, execute
from remote_world import Head, Laptop

from free_ports import free_port

SERVER = (
    "import http.server as s; s.ThreadingHTTPServer(('127.0.0.1', {port}), s.SimpleHTTPRequestHandler).serve_forever()"
)
BROWSER = """\
#!/bin/sh
printf %s "$1" > "$OPENED.part"
mv "$OPENED.part" "$OPENED"
"""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    port = free_port()
    with fresh_pool("2xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        yield Head(pool, f"127.0.0.1:{port}")


@pytest.fixture
def pool(head: Head) -> RealPool:
    return head.pool


class Tunnel:
    """A running ``gpupool notebook`` or ``gpupool open``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().decode().strip()

    @property
    def server(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def interrupt(self) -> str:
        """End it as Ctrl-C does; return what it said."""
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=60)[1].decode()
        assert self.process.returncode == 0, said
        assert "Traceback" not in said
        return said


@contextmanager
def tunnel(where: RealPool | Laptop, *words: str, **env: str) -> Iterator[Tunnel]:
    process = where.begin(*words, env={**where.env, **env})
    try:
        made = Tunnel(process)
        assert made.url, process.communicate(timeout=60)[1].decode()
        yield made
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def lab(head: Head) -> Iterator[Tunnel]:
    """Yield JupyterLab on a tenth of a GPU, started from the command line."""
    with tunnel(head.pool, "notebook", "--name", "lab", "-p", "0.1", "--no-browser") as made:
        yield made
    head.pool("stop", "--force", "lab", ok=False)


@pytest.mark.needs("jupyterlab")
def test_code_runs_in_a_slice(lab: Tunnel) -> None:
    assert ask(f"{lab.server}/api/status", lab.token)[0] == 200
    printed = execute(lab.server, lab.token, "import os; print(os.environ['GPUPOOL_GPU_SHARE'], 6 * 7)")
    assert printed.split() == ["0.10", "42"]


@pytest.mark.needs("jupyterlab")
def test_token_is_needed_and_secret(lab: Tunnel, pool: RealPool) -> None:
    assert ask(f"{lab.server}/api/status")[0] == 403
    assert len(lab.token) >= 32
    assert lab.token not in pool.text("logs", "lab")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert lab.token.encode() not in path.read_bytes()
    with pool.client as client:
        view = client.detail("lab")
        assert view.kind == "interactive"
        assert lab.token not in " ".join(view.command or [])


@pytest.mark.needs("jupyterlab")
def test_session_outlives_the_command(lab: Tunnel, pool: RealPool) -> None:
    with tunnel(pool, "open", "lab", "--no-browser") as again:
        assert again.token == lab.token
        assert ask(f"{again.server}/api/status", again.token)[0] == 200
        assert "lab keeps running; 'gpupool open lab' connects again" in again.interrupt()
    with socket.socket() as closed:
        assert closed.connect_ex(("127.0.0.1", urlsplit(again.url).port or 0)) != 0
    assert pool.state_of("lab") == "running"
    assert ask(f"{lab.server}/api/status", lab.token)[0] == 200


@pytest.mark.needs("jupyterlab")
def test_other_machine_with_a_login_opens_it(lab: Tunnel, head: Head, tmp_path: Path) -> None:
    laptop = head.laptop(tmp_path / "laptop", head.token())
    with tunnel(laptop, "open", "lab", "jupyter", "--no-browser", "-q") as there:
        assert execute(there.server, there.token, "print('from afar')") == "from afar\n"
        assert there.interrupt() == ""


@pytest.fixture
def opened(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the browser is a program that writes its argument to the file $OPENED."""
    program = tmp_path / "browser"
    program.write_text(BROWSER)
    program.chmod(0o755)
    return {"BROWSER": str(program), "OPENED": str(tmp_path / "opened")}


@pytest.mark.needs("jupyterlab", "chromium")
def test_browser_gets_the_token_from_a_private_file(lab: Tunnel, pool: RealPool, opened: dict[str, str]) -> None:
    from browsers import started_chromium
    from playwright.sync_api import expect

    with tunnel(pool, "open", "lab", **opened) as made:
        assert eventually(lambda: Path(opened["OPENED"]).exists())
        address = Path(opened["OPENED"]).read_text()
        page_file = Path(urlsplit(address).path)
        assert made.token not in address
        assert stat.S_IMODE(page_file.stat().st_mode) == 0o600
        with started_chromium() as browser:
            page = browser.new_context().new_page()
            page.goto(address)
            expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=90_000)
            assert urlsplit(page.url).netloc == urlsplit(made.url).netloc
        made.interrupt()
    assert not page_file.exists()


@pytest.fixture
def workspace(pool: RealPool) -> Iterator[str]:
    """Yield a stopped workspace."""
    pool("workspace", "create", "bob", "-n", "0")
    yield "bob"
    with pool.client as client:
        client.stop_workspace("bob", force=True)
        assert eventually(lambda: client.workspace("bob").state == "stopped")
        client.delete_workspace("bob")


IN_HOME = "import os; open('made', 'w').close(); print(os.getcwd() == os.environ['GPUPOOL_WORKSPACE_HOME'])"


@pytest.mark.needs("jupyterlab")
@pytest.mark.parametrize("running", [False, True])
def test_notebook_opens_in_a_workspace(workspace: str, pool: RealPool, running: bool) -> None:
    if running:
        pool("workspace", "start", workspace)
    words = ("notebook", "--name", "inside", "--workspace", workspace, *(() if running else ("-n", "0")))
    with tunnel(pool, *words, "--no-browser") as lab:
        assert execute(lab.server, lab.token, IN_HOME) == "True\n"
        lab.interrupt()
    with tunnel(pool, "open", workspace if running else "inside", "jupyter", "--no-browser") as again:
        assert again.server
    with pool.client as client:
        assert client.workspace(workspace).state == "running"
        session = client.workspace(workspace).session
        assert (client.detail("inside").on == session) == running
        client.stop("inside", force=True)


def test_open_reaches_a_server_in_a_workspace(workspace: str, pool: RealPool) -> None:
    pool("workspace", "start", workspace)
    pool("exec", workspace, "--", "sh", "-c", "echo from the home > page.txt")
    server = pool.begin("exec", workspace, "--", "python3", "-m", "http.server", "0", "--bind", "127.0.0.1")
    try:
        with tunnel(pool, "open", workspace, "--no-browser") as page:
            assert ask(f"{page.server}/page.txt") == (200, "from the home\n")
    finally:
        server.kill()
        server.communicate()


def test_waits_in_the_queue_with_a_reason_until_interrupted(pool: RealPool) -> None:
    pool("submit", "all", "-n", "1", "--", "sleep", "1000")
    assert pool.becomes("all", "running")
    try:
        process = pool.begin("notebook", "--name", "later", "-n", "2", "--no-browser")
        assert process.stderr is not None
        assert b"waiting, position 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert b"later was removed from the queue" in said
        assert pool.becomes("later", "stopped")
    finally:
        pool("stop", "--force", "all")


def test_python_without_jupyterlab(pool: RealPool, tmp_path: Path) -> None:
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare/bin/python")
    done = pool("notebook", "-n", "0", "--python", python, "--no-browser", ok=False)
    assert done.returncode == 125
    assert f"{python} has no JupyterLab on the node. [NOT_FOUND]" in done.stderr.decode()
    assert f"'{python} -m pip install jupyterlab'" in done.stderr.decode()


def test_open_waits_for_the_port(pool: RealPool, opened: dict[str, str]) -> None:
    port, go = free_port(), pool.work / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n" + SERVER.format(port=port)
    pool("submit", "web", "-n", "0", "--", "python3", "-c", code)
    process = pool.begin("open", "web", env={**pool.env, **opened})
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == b"gpupool: waiting until web listens on a port\n"
        go.touch()
        made = Tunnel(process)
        assert ask(made.url)[0] == 200
        assert eventually(lambda: Path(opened["OPENED"]).exists())
        assert Path(opened["OPENED"]).read_text() == made.url
        with pool.client as client:
            assert [found.port for found in client.ports("web")] == [port]
        pool("stop", "--force", "web")
        said = process.communicate(timeout=60)[1].decode()
        assert "gpupool: web stopped" in said
    finally:
        process.kill()
        process.communicate()


def test_open_asks_which_of_several_ports(pool: RealPool) -> None:
    first, second = sorted((free_port(), free_port()))
    code = f"import socket\na, b = (socket.create_server(('127.0.0.1', p)) for p in ({first}, {second}))\na.accept()"
    pool("submit", "two", "-n", "0", "--", "python3", "-c", code)
    try:
        with pool.client as client:
            assert client.get("two").wait_started(60)
            assert eventually(lambda: len(client.ports("two")) == 2)
        done = pool("open", "two", "--no-browser", ok=False)
        assert done.returncode == 125
        assert (
            f"two listens on 2 ports: {first} (python3), {second} (python3). [INVALID_REQUEST]" in done.stderr.decode()
        )
        with tunnel(pool, "open", "two", str(second), "--port", "0", "--no-browser") as made:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", made.url)
    finally:
        pool("stop", "--force", "two")


def test_open_says_how_a_workload_ended(pool: RealPool) -> None:
    pool("submit", "brief", "-n", "0", "--restart", "never", "--wait-finished", "--", "sh", "-c", "exit 3", ok=False)
    done = pool("open", "brief", ok=False)
    assert done.returncode == 125
    assert "brief failed with exit status 3" in done.stderr.decode()
    assert "[WRONG_STATE]" in done.stderr.decode()


def test_another_users_ports_are_refused(pool: RealPool, head: Head, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    pool("user", "set", "ada", "--uid", "54321")
    pool("submit", "mine", "-n", "0", "--", "sleep", "1000")
    laptop = head.laptop(tmp_path / "ada", head.token("ada"))
    try:
        assert pool.becomes("mine", "running")
        done = laptop("open", "mine", "8080", ok=False)
        assert b"[FORBIDDEN]" in done.stderr
    finally:
        pool("stop", "--force", "mine")
