"""A kernel that the pool ended stays dead in Jupyter Server, with the reason, until its user restarts it."""

from __future__ import annotations

from pathlib import Path

from e2e_pool import RealPool, eventually
from jupyter_http import begin_code
from kernels import TENTH, kernel_on_slices
from servers import JupyterServer, jupyter_server


def shows_dead(server: JupyterServer, kernel_id: str, reason: str) -> bool:
    """Return whether the server shows the kernel as dead for this reason."""
    kernel = server.ask(f"kernels/{kernel_id}")
    return bool(kernel["execution_state"] == "dead" and reason in kernel.get("reason", ""))


def workloads(pool: RealPool) -> list[str]:
    """Return the ids of all workloads, also of those that ended."""
    with pool.client as client:
        return [job.id for job in client.list(all=True)]


def test_stopped_kernel_stays_dead_until_it_is_restarted(pool: RealPool, tmp_path: Path) -> None:
    with kernel_on_slices("tenth") as name, jupyter_server(pool, tmp_path / "notebooks") as server:
        before = workloads(pool)
        kernel_id = server.open_notebook("a.ipynb", name)
        server.run(kernel_id, "x = 41")
        with server.tab(kernel_id):
            with pool.client as client:
                (job,) = client.list()
            pool("stop", job.name)
            assert eventually(lambda: shows_dead(server, kernel_id, "STOPPED_BY_USER")), server.said()
            assert pool.all_free()
        assert len(workloads(pool)) == len(before) + 1, "nothing started it again"
        server.ask(f"kernels/{kernel_id}/restart", method="POST")
        assert server.run(kernel_id, "print('x' in globals())") == "False\n"


def test_idle_kernel_is_ended_although_a_tab_is_open(pool: RealPool, tmp_path: Path) -> None:
    request = {**TENTH, "idle_timeout": "3s"}
    with kernel_on_slices("idle", request) as name, jupyter_server(pool, tmp_path / "notebooks") as server:
        kernel_id = server.open_notebook("a.ipynb", name)
        server.run(kernel_id, "x = 41")
        with server.tab(kernel_id):
            assert eventually(lambda: shows_dead(server, kernel_id, "IDLE")), server.said()
        assert pool.all_free()


def test_kernel_above_its_memory_limit_stays_dead(pool: RealPool, tmp_path: Path) -> None:
    request = {**TENTH, "memory": "300M"}
    with kernel_on_slices("small", request) as name, jupyter_server(pool, tmp_path / "notebooks") as server:
        kernel_id = server.open_notebook("a.ipynb", name)
        server.run(kernel_id, "x = 41")
        with server.tab(kernel_id) as tab:
            begin_code(tab, "data = [b'1' * 1_000_000 for _ in range(2_000)]")
            assert eventually(lambda: shows_dead(server, kernel_id, "MEMORY_LIMIT")), server.said()
            assert pool.all_free()
        server.ask(f"kernels/{kernel_id}/restart", method="POST")
        assert server.run(kernel_id, "print('x' in globals())") == "False\n"
