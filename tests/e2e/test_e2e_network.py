"""Over the network: TLS, tokens, and the same commands as on the machine."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from e2e_pool import RealPool, Terminal, eventually, fresh_pool

from free_ports import free_port
from gpupool.cli.fast.waiting import RECONNECT_TIMEOUT_S


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[RealPool, dict[str, str]]]:
    port = free_port()
    with fresh_pool("1xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        secret = (
            pool.text("token", "create", "--expires", "1h", ok=False).split() or pool.text("token", "create").split()
        )
        token = next(word for word in secret if word.startswith("gpt_"))
        kept = {k: v for k, v in pool.env.items() if not k.startswith("GPUPOOL_")}
        away = {
            **kept,
            "GPUPOOL_URL": f"https://127.0.0.1:{port}",
            "GPUPOOL_TOKEN": token,
            "GPUPOOL_CA": str(pool.state / "tls" / "cert.pem"),
        }
        yield pool, away


def test_run_works_over_the_network(served: tuple[RealPool, dict[str, str]]) -> None:
    pool, away = served
    data = bytes(range(256)) * 4000
    done = pool("run", "-q", "-p", "0.1", "-w", "/", "--", "cat", stdin=data, env=away)
    assert done.stdout == data
    assert pool("run", "-p", "0.1", "-w", "/", "--", "sh", "-c", "exit 6", env=away, ok=False).returncode == 6
    assert pool.all_free()


def test_submit_logs_and_attach_work_over_the_network(served: tuple[RealPool, dict[str, str]]) -> None:
    pool, away = served
    script = "echo begun; read x; echo heard $x; exit 3"
    pool(
        "submit", "far", "-g", "0.1", "--interactive", "--tty", "-w", "/", "--", "sh", "-c", script, env=away, ok=False
    )
    assert pool.becomes("far", "running")
    local = pool.env
    pool.env = away
    try:
        terminal = Terminal(pool, "attach", "far")
        terminal.send(b"words\r")
        terminal.expect(b"heard words")
        assert terminal.wait() == 3
        terminal.close()
        assert eventually(lambda: "heard words" in pool.text("logs", "far"))
        assert eventually(lambda: pool.json("describe", "far")["state"] == "failed")
    finally:
        pool.env = local


def test_killed_remote_client_frees_the_slice(served: tuple[RealPool, dict[str, str]]) -> None:
    pool, away = served
    client = pool.begin(
        "run", "-q", "--grace", "1s", "-p", "0.1", "-w", "/", "--", "sh", "-c", "echo on; exec sleep 1000", env=away
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"on\n"
    client.kill()
    client.wait()
    assert pool.all_free()


@pytest.mark.parametrize("token", ["", "gpt_wrong_secret", "x" * 5000])
def test_missing_token_is_refused(served: tuple[RealPool, dict[str, str]], token: str) -> None:
    pool, away = served
    done = pool("ps", env={**away, "GPUPOOL_TOKEN": token}, ok=False)
    assert done.returncode == 125
    assert b"UNAUTHENTICATED" in done.stderr


def test_untrusted_certificate_is_refused(served: tuple[RealPool, dict[str, str]]) -> None:
    pool, away = served
    strange = {k: v for k, v in away.items() if k != "GPUPOOL_CA"}
    for command in (("ps",), ("run", "--", "true"), ("run", "-w", "/", "--", "true")):
        begun = time.monotonic()
        done = pool(*command, env=strange, ok=False)
        assert done.returncode == 125
        assert b"certificate is not trusted" in done.stderr
        assert time.monotonic() - begun < RECONNECT_TIMEOUT_S / 2, "it does not wait for a pool that answers"


def test_revoked_token_is_refused(served: tuple[RealPool, dict[str, str]]) -> None:
    pool, away = served
    secret = next(word for word in pool.text("token", "create").split() if word.startswith("gpt_"))
    mine = {**away, "GPUPOOL_TOKEN": secret}
    assert pool("ps", env=mine).returncode == 0
    pool("token", "revoke", secret.split("_")[1])
    assert b"UNAUTHENTICATED" in pool("ps", env=mine, ok=False).stderr


def ipv6_port() -> int | None:
    try:
        return free_port("::1")
    except (OSError, AssertionError):
        return None


def test_all_commands_work_over_ipv6(tmp_path: Path) -> None:
    port = ipv6_port()
    if port is None:
        pytest.skip("this machine has no IPv6 loopback")
    head = f"[::1]:{port}"
    with fresh_pool("1xT4", "--listen", head, "--tls-self-signed") as pool:
        token = pool.text("token", "create").split()[-1]
        fingerprint = sha256(ssl.PEM_cert_to_DER_cert((pool.state / "tls" / "cert.pem").read_text())).hexdigest()
        kept = {k: v for k, v in pool.env.items() if not k.startswith("GPUPOOL_")}
        away = {**kept, "HOME": str(tmp_path), "GPUPOOL_TOKEN": token}
        pool("login", head, "--fingerprint", fingerprint, env=away)
        del away["GPUPOOL_TOKEN"]
        folder = tmp_path / "work"
        folder.mkdir()
        (folder / "read.py").write_text(
            "print(open('data.txt').read().upper(), end='')\nopen('made.txt', 'w').write('5')"
        )
        (folder / "data.txt").write_text("over ipv6")
        done = pool("run", "-q", "-p", "0.1", "--", "python3", "read.py", env=away, cwd=folder)
        assert done.stdout == b"OVER IPV6"
        pool("submit", "far", "-g", "0.1", "--", "python3", "read.py", env=away, cwd=folder)
        pool("wait", "far", env=away)
        assert pool("logs", "far", env=away).stdout == b"OVER IPV6"
        pool("fetch", "far", "made.txt", env=away, cwd=folder)
        assert (folder / "made.txt").read_text() == "5"


def test_used_port_is_reported() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken, fresh_pool("1xT4", started=False) as pool:
        port = taken.getsockname()[1]
        failed = pool.up("--listen", f"127.0.0.1:{port}", "--tls-self-signed", ok=False)
        assert failed.returncode != 0
        assert b"PORT_TAKEN" in failed.stderr
        assert str(port).encode() in failed.stderr


def test_unencrypted_network_is_refused() -> None:
    with fresh_pool("1xT4", started=False) as pool:
        failed = pool.up("--listen", "127.0.0.1:0", ok=False)
        assert failed.returncode != 0
        assert b"TLS" in failed.stderr
