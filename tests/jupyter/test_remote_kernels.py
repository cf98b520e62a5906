"""Kernels on other machines than Jupyter: their channels go through the pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import fresh_pool
from kernels import Kernel, becomes, kernel_on_slices, running_kernel, use
from machines_harness import Machines, machines
from remote_world import Head, Laptop
from servers import jupyter_server

from free_ports import free_port

BIG = 8_000_000  # characters of one output


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    port = free_port()
    with fresh_pool("2xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        yield Head(pool, f"127.0.0.1:{port}")


@pytest.fixture
def laptop(head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    """Yield a machine with a login and a kernel ``far``, with this process in the environment of its user."""
    made = head.laptop(tmp_path / "laptop", head.token())
    for name in [name for name in os.environ if name.startswith(("GPUPOOL_", "XDG_", "JUPYTER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("IPYTHONDIR", str(made.home / "ipython"))
    monkeypatch.chdir(made.work)
    made("jupyter", "kernel", "add", "0.1", "--name", "far", "--python", sys.executable)
    yield made
    head.pool.clear()


def node_folder(kernel: Kernel) -> Path:
    """Return the kernel's folder on its node, which is really this machine."""
    return Path(json.loads((kernel.folder / "kernel.json").read_text())["node_folder"])


def in_arguments(text: str) -> bool:
    """Return whether a text is in the arguments of a running process."""
    found = False
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found |= text.encode() in arguments.read_bytes()
    return found


def test_kernel_in_a_pool_over_the_network(head: Head, laptop: Laptop) -> None:
    laptop.write("data/words.txt", b"from the laptop")

    async def use() -> None:
        async with running_kernel("far") as kernel:
            assert await kernel.run("print(6 * 7)") == "42\n"
            assert await kernel.run("print(open('data/words.txt').read())") == "from the laptop\n"
            assert await kernel.run("import os; print(os.environ['GPUPOOL_GPU_SHARE'])") == "0.10\n"
            assert await kernel.ask("name = input('who? ')", "Ada") == "ok"
            assert await kernel.run("print(name)") == "Ada\n"
            assert await kernel.run(f"print('x' * {BIG})") == "x" * BIG + "\n"
            assert await kernel.interrupted() == "KeyboardInterrupt"

            workload = kernel.workload
            await kernel.manager.restart_kernel()
            await kernel.connect()
            assert await kernel.run("print('name' in globals())") == "False\n"
            assert kernel.workload == workload
            assert head.pool.json("describe", workload)["replicas"][0]["attempt"] == 2, "restarted on the same GPUs"
        assert head.pool.all_free()

    asyncio.run(use())


def test_key_and_sockets_of_a_far_kernel_are_private(head: Head, laptop: Laptop) -> None:
    async def use() -> None:
        async with running_kernel("far") as kernel:
            key = json.loads((kernel.folder / "connection.json").read_text())["key"]
            folder = node_folder(kernel)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / "connection.json").stat().st_mode) == 0o600
            assert len([path for path in folder.iterdir() if path.is_socket()]) == 5
            assert await kernel.run("import os; print([v for v in os.environ if 'CONNECTION' in v])") == "[]\n"
            assert not in_arguments(key)
            assert key not in head.pool.text("logs", kernel.workload)
            assert not any(key in line for line in kernel.log)
        async with running_kernel("far"):
            assert not folder.exists(), "the next kernel deletes it"

    asyncio.run(use())


def test_next_server_tunnels_to_the_far_kernel_again(head: Head, laptop: Laptop, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    env = {**laptop.env, "IPYTHONDIR": str(laptop.home / "ipython")}
    with jupyter_server(env, folder) as first:
        kernel_id = first.open_notebook("a.ipynb", "far")
        first.run(kernel_id, "x = 41")
        first.end()
    with jupyter_server(env, folder) as second:
        assert second.kernels() == [kernel_id], second.said()
        assert second.run(kernel_id, "print(x + 1)") == "42\n"
        second.interrupt_until_ended(kernel_id, "import time; time.sleep(600)")
        second.ask(f"kernels/{kernel_id}/restart", method="POST")
        assert second.run(kernel_id, "print('x' in globals())") == "False\n"
        second.ask(f"kernels/{kernel_id}", method="DELETE")
        assert head.pool.all_free()


def test_far_kernel_outlives_kill_of_the_control_plane(head: Head, laptop: Laptop) -> None:
    async def use() -> None:
        async with running_kernel("far") as kernel:
            await kernel.run("x = 41")
            await asyncio.to_thread(head.pool.kill_child, "control-plane")
            await kernel.connect()
            assert await kernel.run("print(x + 1)") == "42\n"

    asyncio.run(use())


def test_far_kernel_that_the_pool_ended_is_dead(head: Head, laptop: Laptop) -> None:
    async def use() -> None:
        async with running_kernel("far") as kernel:
            head.pool("stop", "--force", kernel.workload)
            await becomes(lambda: kernel.has_logged("The pool ended this kernel"))
            await becomes(kernel.dead)

    asyncio.run(use())


def test_far_kernel_is_reached_again_after_a_new_login(head: Head, laptop: Laptop) -> None:
    """A revoked token cuts the channels, and the message says why; the kernel runs on with its variables."""

    async def use() -> None:
        async with running_kernel("far") as kernel:
            await kernel.run("x = 41")
            for token in head.pool.json("token", "list")["tokens"]:
                head.pool("token", "revoke", str(token["id"]))
            await becomes(
                lambda: kernel.has_logged("The kernel runs, but cannot be reached: The token has been revoked")
            )
            assert await kernel.manager.is_alive()
            laptop.login(head.token())
            await kernel.connect()
            assert await kernel.run("print(x + 1)") == "42\n"
            async with running_kernel("far") as other:
                assert await other.run("print(6 * 7)") == "42\n"

    asyncio.run(use())


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with machines(2, "1xT4") as made:
        for name, folder in (("DATA", "jupyter"), ("RUNTIME", "runtime"), ("CONFIG", "config")):
            made.env[f"JUPYTER_{name}_DIR"] = str(tmp_path / folder)
        made.env["IPYTHONDIR"] = str(tmp_path / "ipython")
        use(made, monkeypatch)
        yield made


def test_kernels_on_each_node_of_a_pool(two_nodes: Machines) -> None:
    async def start_two(name: str) -> None:
        async with running_kernel(name) as one, running_kernel(name) as other:
            assert {two_nodes.node_of(kernel.workload) for kernel in (one, other)} == {"n1", "n2"}
            for kernel in (one, other):
                assert await kernel.run("import os; print(os.environ['GPUPOOL_WORKLOAD_ID'])") == f"{kernel.workload}\n"
                assert await kernel.interrupted() == "KeyboardInterrupt"
            await one.run("x = 41")
            await asyncio.to_thread(restart_agent, two_nodes, two_nodes.node_of(one.workload))
            await one.connect()
            assert await one.run("print(x + 1)") == "42\n"

    with kernel_on_slices("whole", {"gpus": {"count": 1}}) as name:
        asyncio.run(start_two(name))


def restart_agent(pool: Machines, node: str) -> None:
    pool.nodes[node].kill()
    pool.nodes[node].start()
    assert pool.node_becomes(node, "up")


@pytest.fixture
def hasty_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with machines(2, "1xT4", hasty=True) as made:
        made.env |= {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "IPYTHONDIR": str(tmp_path / "ipython")}
        use(made, monkeypatch)
        yield made


def test_kernel_of_a_lost_node_is_dead_and_can_be_restarted_on_another(hasty_nodes: Machines) -> None:
    async def use_kernel(name: str) -> None:
        async with running_kernel(name) as kernel:
            first = hasty_nodes.node_of(kernel.workload)
            hasty_nodes.nodes[first].freeze()  # its disk and its programs are gone for the pool
            assert await asyncio.to_thread(hasty_nodes.node_becomes, first, "down")
            hasty_nodes("node", "lost", first, "--reason", "its disk failed")
            await becomes(lambda: kernel.has_logged("The pool ended this kernel"))
            assert await kernel.has_logged("[NODE_LOST]. Restart it to get a new slice.")
            await becomes(kernel.dead)
            await kernel.manager.restart_kernel()
            await kernel.connect()
            assert await kernel.run("print(6 * 7)") == "42\n"
            assert hasty_nodes.node_of(kernel.workload) != first

    with kernel_on_slices("whole", {"gpus": {"count": 1}}) as name:
        asyncio.run(use_kernel(name))
    hasty_nodes.heal()
