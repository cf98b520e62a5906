"""Real Jupyter Servers, started as users do, with kernels on the slices of a pool."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from e2e_pool import RealPool, eventually
from jupyter_http import ask, channels, execute_in
from websockets.sync.client import ClientConnection

TOKEN = "token-of-this-test"
LIGHT_IMPORTS = str(Path(__file__).with_name("light"))
# The search starts npm and R in each server, which takes about a second of CPU time.
NO_LANGUAGE_SERVERS = "--LanguageServerManager.autodetect=False"


class JupyterServer:
    """A server of one folder; its log is in a file. ``process``: options for starting it, such as another user.

    ``module`` is ``jupyter_server``, or ``jupyterlab`` with its pages.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        folder: Path,
        python: str = sys.executable,
        module: str = "jupyter_server",
        **process: Any,
    ) -> None:
        self.folder = folder
        self.log = folder.with_suffix(f".{os.urandom(4).hex()}.log")
        command = [python, "-m", module, "--no-browser", "--allow-root", "--port=0"]
        options = [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}", NO_LANGUAGE_SERVERS]
        with self.log.open("wb") as log:
            streams = {"stdout": log, "stderr": log}
            folders = (LIGHT_IMPORTS, env.get("PYTHONPATH", ""))
            variables = {**env, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
            self.process = subprocess.Popen([*command, *options], env=variables, cwd=folder, **streams, **process)
        self.url = ""

    def wait_until_it_answers(self) -> None:
        """Wait until requests succeed."""
        assert eventually(self._find_url), self.said()

    def _find_url(self) -> bool:
        """Return whether the server has logged its address and answers."""
        assert self.process.poll() is None, self.said()
        for line in self.said().splitlines():
            if "http://127.0.0.1:" in line or "http://localhost:" in line:
                self.url = re.split(r"/(?:lab|tree)?\?token", line[line.index("http://") :])[0].rstrip("/")
        try:
            return bool(self.url) and ask(f"{self.url}/api/status", TOKEN)[0] == 200
        except OSError:  # it does not listen yet
            return False

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        """Return what the server answers; it must succeed."""
        status, answer = ask(f"{self.url}/api/{path}", TOKEN, body, method)
        assert status < 300, (status, answer, self.said())
        return answer

    def open_notebook(self, path: str, kernel: str) -> str:
        """Start a kernel for a notebook and return its ID."""
        notebook = self.folder / path
        notebook.parent.mkdir(exist_ok=True)
        notebook.touch()
        body = {"path": path, "name": notebook.name, "type": "notebook", "kernel": {"name": kernel}}
        return str(self.ask("sessions", body)["kernel"]["id"])

    def run(self, kernel_id: str, code: str) -> str:
        return execute_in(self.url, TOKEN, kernel_id, code)

    def interrupt_until_ended(self, kernel_id: str, code: str) -> None:
        """Execute code that takes long, and interrupt it until it has ended.

        ipykernel loses a request if a signal arrives just before its code, hence the wait for the code.
        """
        started = self.folder.with_suffix(f".{os.urandom(4).hex()}.started")
        with ThreadPoolExecutor() as threads:
            running = threads.submit(self.run, kernel_id, f"open({str(started)!r}, 'w').close()\n{code}")
            assert eventually(started.exists)
            while not running.done():
                self.ask(f"kernels/{kernel_id}/interrupt", method="POST")
                wait([running], timeout=1)

    def tab(self, kernel_id: str) -> AbstractContextManager[ClientConnection]:
        """Return a connection as an open browser's tab has it."""
        return channels(self.url, TOKEN, kernel_id, os.urandom(8).hex())

    def kernels(self) -> list[str]:
        return [str(kernel["id"]) for kernel in self.ask("kernels")]

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the server and wait until it has ended."""
        self.process.send_signal(number)
        self.process.wait(60)


@contextmanager
def jupyter_server(
    pool: RealPool | Mapping[str, str], folder: Path, python: str = sys.executable, **process: Any
) -> Iterator[JupyterServer]:
    """Yield a running server in the environment of a pool; at the end it is killed, if it still runs."""
    folder.mkdir(exist_ok=True)
    server = JupyterServer(pool.env if isinstance(pool, RealPool) else pool, folder, python, **process)
    try:
        server.wait_until_it_answers()
        yield server
    finally:
        server.process.kill()
        server.process.wait(60)
