"""Messages that the user of a real Jupyter Server sees when a kernel cannot start."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import eventually, fresh_pool
from jupyter_http import ask
from remote_world import Head
from servers import TOKEN, jupyter_server

from free_ports import free_port


@pytest.fixture
def head() -> Iterator[Head]:
    port = free_port()
    with fresh_pool("1xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        yield Head(pool, f"127.0.0.1:{port}")


def test_revoked_token_is_named(head: Head, tmp_path: Path) -> None:
    laptop = head.laptop(tmp_path / "laptop", head.token())
    laptop("jupyter", "kernel", "add", "0.1", "--name", "far", "--python", sys.executable)
    with jupyter_server({**laptop.env, "IPYTHONDIR": str(tmp_path / "ipython")}, tmp_path / "notebooks") as server:
        for token in head.pool.json("token", "list")["tokens"]:
            head.pool("token", "revoke", str(token["id"]))
        status, answer = ask(f"{server.url}/api/kernels", TOKEN, {"name": "far"})
        assert (status, answer["message"].splitlines()[0]) == (503, "The token has been revoked. [UNAUTHENTICATED]")
        assert server.kernels() == []


def test_error_names_stopped_pool(head: Head, tmp_path: Path) -> None:
    laptop = head.laptop(tmp_path / "laptop", head.token())
    laptop("jupyter", "kernel", "add", "0.1", "--name", "far", "--python", sys.executable)
    with jupyter_server({**laptop.env, "IPYTHONDIR": str(tmp_path / "ipython")}, tmp_path / "notebooks") as server:
        head.pool("down")
        status, answer = ask(f"{server.url}/api/kernels", TOKEN, {"name": "far"})
        assert status == 503
        assert answer["message"].startswith(f"The pool at {head.url} does not answer: ")
        assert server.kernels() == []


def test_python_without_ipykernel_on_the_node_is_named(head: Head, tmp_path: Path) -> None:
    laptop = head.laptop(tmp_path / "laptop", head.token())
    empty = tmp_path / "empty"
    venv.create(empty, with_pip=False)
    laptop("jupyter", "kernel", "add", "0.1", "--name", "empty", "--python", str(empty / "bin/python"))
    with jupyter_server({**laptop.env, "IPYTHONDIR": str(tmp_path / "ipython")}, tmp_path / "notebooks") as server:
        _, answer = ask(f"{server.url}/api/kernels", TOKEN, {"name": "empty"})
        # It has ended before it is seen running, or is started again a few times.
        assert eventually(lambda: "No module named ipykernel_launcher" in f"{answer} {server.said()}"), server.said()
