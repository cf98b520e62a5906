"""A run over the network resumes after its connection breaks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from e2e_pool import PATIENCE_S
from remote_world import Head, Laptop, Proxy


@pytest.fixture
def proxy(head: Head) -> Iterator[Proxy]:
    made = Proxy(head)
    yield made
    made.close()


COUNTS = "for i in $(seq 40); do echo $i; sleep 0.1; done; read line; echo got $line; exit 6"


def goes_on(run: subprocess.Popen[bytes], broken_by: Callable[[], None]) -> None:
    """Its way is broken once it has begun: it hears and says everything all the same."""
    assert run.stdin is not None
    assert run.stdout is not None
    first = run.stdout.readline()
    broken_by()
    run.stdin.write(b"this\n")
    run.stdin.flush()
    out, err = run.communicate(timeout=PATIENCE_S * 3)
    assert (first + out).split() == [*(b"%d" % number for number in range(1, 41)), b"got", b"this"], err
    assert run.returncode == 6
    assert b"was lost; reconnecting" in err


@pytest.mark.parametrize("lease", [False, True], ids=["run", "client"])
def test_run_survives_killed_control_plane(head: Head, laptop: Laptop, lease: bool) -> None:
    words = ("run", "-p", "0.1")
    if lease:
        laptop("request_gpus", "-p", "0.1", "--name", "held")
        words = ("client", "--lease", "held")
    run = laptop.begin(*words, "--", "sh", "-c", COUNTS)
    goes_on(run, lambda: os.kill(head.pool.pids()["control-plane"], signal.SIGKILL))
    if lease:
        laptop("release_gpus", "held")


def test_run_survives_restarted_proxy(head: Head, laptop: Laptop, proxy: Proxy) -> None:
    laptop.url = f"127.0.0.1:{proxy.port}"
    laptop.login(head.token())
    run = laptop.begin("run", "-p", "0.1", "--", "sh", "-c", COUNTS)
    goes_on(run, proxy.restart)
