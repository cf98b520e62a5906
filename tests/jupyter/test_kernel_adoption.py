"""Kernels outlive the kill -9 of their Jupyter Server, and the next server of the same folder takes them over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually
from kernels import kernel_on_slices
from servers import jupyter_server


@pytest.fixture
def tenth(pool: RealPool) -> Iterator[str]:
    with kernel_on_slices("tenth") as name:
        yield name


def test_next_server_has_the_kernel_with_its_variables(pool: RealPool, tenth: str, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    with jupyter_server(pool, folder) as first:
        kernel_id = first.open_notebook("week 1/a.ipynb", tenth)
        first.run(kernel_id, "x = 41")
        first.end()
    with jupyter_server(pool, folder) as second:
        assert second.kernels() == [kernel_id], second.said()
        assert [(s["path"], s["kernel"]["id"]) for s in second.ask("sessions")] == [("week 1/a.ipynb", kernel_id)], (
            second.said()
        )
        assert second.run(kernel_id, "print(x + 1)") == "42\n"

        second.interrupt_until_ended(kernel_id, "import time; time.sleep(600)")
        assert second.run(kernel_id, "print(x + 2)") == "43\n"
        with pool.client as client:
            (job,) = client.list()
        second.ask(f"kernels/{kernel_id}/restart", method="POST")
        assert second.run(kernel_id, "print('x' in globals())") == "False\n"
        assert pool.json("describe", job.id)["replicas"][0]["attempt"] == 2, "restarted on the same GPUs"
        second.ask(f"kernels/{kernel_id}", method="DELETE")
        assert second.kernels() == []
        assert eventually(lambda: pool.state_of(job.id) not in {"running", "stopping"})
        assert pool.all_free()


def test_server_of_another_folder_leaves_the_kernel(pool: RealPool, tenth: str, tmp_path: Path) -> None:
    with jupyter_server(pool, tmp_path / "mine") as first:
        kernel_id = first.open_notebook("a.ipynb", tenth)
        first.run(kernel_id, "x = 41")
        first.end()
    with jupyter_server(pool, tmp_path / "other") as other:
        assert other.kernels() == []
        with jupyter_server(pool, tmp_path / "mine") as mine:
            assert eventually(lambda: mine.kernels() == [kernel_id]), mine.said()
            assert mine.run(kernel_id, "print(x)") == "41\n"


def test_one_of_two_servers_takes_the_kernel(pool: RealPool, tenth: str, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    with jupyter_server(pool, folder) as first:
        kernel_id = first.open_notebook("a.ipynb", tenth)
        first.run(kernel_id, "x = 41")
        first.end()
    with jupyter_server(pool, folder) as second, jupyter_server(pool, folder) as third:
        assert eventually(lambda: kernel_id in second.kernels() + third.kernels())
        owners = [server for server in (second, third) if server.kernels() == [kernel_id]]
        assert len(owners) == 1
        assert owners[0].run(kernel_id, "print(x)") == "41\n"


def test_kernel_that_ended_meanwhile_is_not_taken_over(pool: RealPool, tenth: str, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    with jupyter_server(pool, folder) as first:
        first.run(first.open_notebook("a.ipynb", tenth), "x = 41")
        first.end()
    with pool.client as client:
        (job,) = client.list()
        job.cancel(force=True)
    assert pool.all_free()
    with jupyter_server(pool, folder) as second:
        assert second.kernels() == []
        assert second.run(second.open_notebook("a.ipynb", tenth), "print('new')") == "new\n"


def test_server_that_ends_properly_stops_its_kernels(pool: RealPool, tenth: str, tmp_path: Path) -> None:
    with jupyter_server(pool, tmp_path / "notebooks") as first:
        first.run(first.open_notebook("a.ipynb", tenth), "x = 41")
        first.end(15)
    assert pool.all_free()


@pytest.mark.parametrize("child", ["control-plane", "agent"])
def test_kernel_outlives_kill_of_a_part_of_the_pool(own_pool: RealPool, child: str, tmp_path: Path) -> None:
    with kernel_on_slices("tenth") as name, jupyter_server(own_pool, tmp_path / "notebooks") as server:
        kernel_id = server.open_notebook("a.ipynb", name)
        server.run(kernel_id, "x = 41")
        own_pool.kill_child(child)
        assert server.run(kernel_id, "print(x + 1)") == "42\n"
        server.interrupt_until_ended(kernel_id, "import time; time.sleep(600)")
        server.ask(f"kernels/{kernel_id}/restart", method="POST")
        assert server.run(kernel_id, "print('x' in globals())") == "False\n"
        server.end(15)
    assert own_pool.all_free()
