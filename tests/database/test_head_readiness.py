"""A standby head is ready only if it could take over; otherwise all users see the reason."""

from __future__ import annotations

import json
import shlex
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from databases import PostgresServer
from e2e_pool import PATIENCE_S, RealPool, eventually
from two_heads import PASSWORD, TwoHeads, change_password, guarded

from gpupool.api.server.tls import fingerprint
from gpupool.daemon.cluster import readiness
from gpupool.domain.nodes.heads import Head
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.pool.head_reports import DatabaseView, probe

# The timeout only bounds a failing test: machines may be busy.
pytestmark = [pytest.mark.needs("ray"), pytest.mark.timeout(600)]
H1 = Head("h1", "https://10.0.0.1:8443", "pem 1", "10.0.0.1", 8650)
H2 = Head("h2", "https://10.0.0.2:8443", "pem 2", "10.0.0.2", 8650)
WELL = DatabaseView(0.0, (H1, H2), {"h1": "10.0.0.1", "h2": "10.0.0.2", "n1": "10.0.0.3"}, ("h1", "h2", "n1"))


@pytest.fixture(scope="module")
def heads(server: PostgresServer) -> Iterator[TwoHeads]:
    with tempfile.TemporaryDirectory(prefix="gp-heads-") as name:
        Path(name).chmod(0o755)
        made = TwoHeads(Path(name), server, guarded(server))
        try:
            made.begin()
            yield made
        finally:
            made.close()


def finding(pool: RealPool, check: str) -> dict[str, Any]:
    found = json.loads(pool("doctor", "--json", ok=False).stdout)["findings"]
    return next((one for one in found if one["check"] == check), {})


class Hook:
    """A webhook that keeps what is posted."""

    def __init__(self) -> None:
        hook = self
        self.warnings: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.warnings += json.loads(body)["warnings"]
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"


@pytest.mark.parametrize("password", [None, "wrong"])
def test_head_that_cannot_lead_is_refused_before_any_change(heads: TwoHeads, password: str | None) -> None:
    token = heads.token()
    words = ["join", heads.address, "--token", token, "--name", "h2", "--address", "127.0.0.1", "--as-head"]
    if password is not None:
        words += ["--database-password-file", str(heads.password_file(heads.second, password))]
    refused = heads.second(*words, ok=False)
    assert refused.returncode == 125
    said = refused.stderr.decode()
    assert "DATABASE_UNREACHABLE" in said
    assert "Nothing was changed" in said
    assert "--database-password-file" in said
    assert not heads.second.state.exists()
    assert heads.sql("SELECT node FROM members") == "h1"
    assert {token["uses_left"] for token in heads.first.json("join-token", "list")["join_tokens"]} == {1}


def test_printed_command_has_all_options_for_new_head(heads: TwoHeads) -> None:
    done = heads.first("join-token", "create", "--head")
    (line,) = (line for line in done.stderr.decode().splitlines() if line.startswith("  "))
    words = shlex.split(line)
    assert words[:3] == ["gpupool", "join", heads.address]
    path = words[words.index("--database-password-file") + 1]
    assert Path(path).read_text().strip() == PASSWORD
    assert f"First copy {path}" in done.stderr.decode()
    assert "--database-password-file" not in heads.first("join-token", "create").stderr.decode()


def test_login_code_has_the_given_address(heads: TwoHeads) -> None:
    assert heads.first.json("status")["pool"]["listen"].startswith("0.0.0.0:")
    assert f"gpupool login {heads.address} --code" in heads.first.text("login-code")


def test_standby_that_can_take_over_is_ready(heads: TwoHeads) -> None:
    heads.join()
    assert eventually(lambda: heads.head("h2").get("ready") is True, PATIENCE_S * 2)
    assert "h1 leads, h2 waits" in heads.first.text("status")
    assert finding(heads.first, "takeover")["sentence"] == "h2 is a standby and can take over."
    assert finding(heads.second, "takeover")["sentence"] == "This head is a standby and can take over."
    assert 'gpupool_head_ready{head="h2"} 1.0' in metrics(heads.first)


def head_events(heads: TwoHeads) -> list[str]:
    """Return the events about heads, oldest first."""
    found = heads.sql("SELECT reason FROM events WHERE reason LIKE 'HEAD_%' ORDER BY id")
    return found.split()


def metrics(pool: RealPool) -> str:
    client = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(pool.run / "api.sock")))
    return client.get("http://pool/metrics").text


def test_head_with_wrong_password_is_not_ready_and_reported(heads: TwoHeads) -> None:
    hook, known = Hook(), len(head_events(heads))
    heads.first("warnings", "set", "--webhook", hook.url)
    change_password(heads.server, "second-secret")
    heads.password_file(heads.first, "second-secret")
    assert eventually(lambda: b"password authentication failed" in heads.second("status", ok=False).stderr)
    heads.sql("UPDATE head_reports SET reported_at = reported_at - 60")  # it cannot report any more
    assert eventually(lambda: heads.head("h2").get("ready") is False)
    status = heads.first.text("status")
    assert "h1 leads, h2 cannot take over: It has not reported for 1m" in status
    assert "warning: h2 cannot take over" in status
    assert heads.first("health", ok=False).returncode == 1
    mine, theirs = finding(heads.second, "takeover"), finding(heads.first, "takeover")
    assert (mine["level"], theirs["level"]) == ("problem", "problem")
    assert "password authentication failed" in mine["sentence"]
    assert "h2 cannot take over. It has not reported" in theirs["sentence"]
    assert 'gpupool_head_ready{head="h2"} 0.0' in metrics(heads.first)
    browser = httpx2.Client(follow_redirects=True)
    browser.get(heads.first.json("dashboard")["url"])
    address = json.loads((heads.first.state / "config.json").read_text())["dashboard"]
    assert "h2 cannot take over: It has not reported" in browser.get(f"http://{address}/").text
    assert eventually(lambda: hook.warnings, PATIENCE_S * 2)
    (warning,) = hook.warnings
    assert (warning["kind"], warning["name"]) == ("head", "h2")
    assert warning["message"].startswith("h2 cannot take over: It has not reported for")

    heads.password_file(heads.second, "second-secret")
    assert eventually(lambda: heads.head("h2").get("ready") is True, PATIENCE_S * 2)
    assert eventually(lambda: head_events(heads)[known:] == ["HEAD_NOT_READY", "HEAD_READY"], PATIENCE_S)


@pytest.mark.parametrize(
    ("changes", "known", "said"),
    [
        ({}, (H1, H2), []),
        ({"ahead_s": 4.0}, (H1, H2), []),
        ({"ahead_s": 60.0}, (H1, H2), ["clock is 1m00s ahead of"]),
        ({"ahead_s": -3600.0}, (H1, H2), ["clock is 1h00m behind"]),
        ({"heads": (H1,)}, (H1,), ["not in the list of heads"]),
        ({"heads": (H1, Head("h2", "https://10.0.0.9:8443", "pem 2", "10.0.0.2", 8650))}, (H1, H2), ["10.0.0.9"]),
        ({"heads": (H1, Head("h2", H2.url, "old", "10.0.0.2", 8650))}, (H1, H2), ["Its certificate differs"]),
        ({"addresses": {"h1": "10.0.0.1", "h2": "10.0.0.2"}}, (H1, H2), ["the address of n1"]),
        ({"addresses": WELL.addresses | {"n1": ""}, "nodes": ("h1", "h2")}, (H1, H2), []),  # it is down
        ({}, (H2,), ["list of heads is not"]),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], known: tuple[Head, ...], said: list[str]) -> None:
    from dataclasses import replace

    found = readiness.database_faults(replace(WELL, **changes), H2, known)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [(-1, 365, None), (-1, 8, None), (-1, 6, "expires in 5d"), (-10, -1, "has expired"), (1, 9, "not valid yet")],
)
def test_invalid_or_expiring_certificate_is_a_fault(tmp_path: Path, begins: int, ends: int, said: str | None) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now + timedelta(days=begins))
        .not_valid_after(now + timedelta(days=ends))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "cert.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    fault = readiness.certificate_fault("certificate", path, now.timestamp())
    assert (fault is None) is (said is None)
    assert said is None or said in str(fault)
    assert "cannot be read" in str(readiness.certificate_fault("certificate", tmp_path / "none", now.timestamp()))
    assert fingerprint(path)


def test_unusable_database_is_a_fault(server: PostgresServer) -> None:
    def judge(_view: DatabaseView) -> list[str]:
        return ["judged"]

    fresh, empty, newer, read_only = server.fresh(), server.empty(), server.fresh(), server.fresh()
    server.sql("UPDATE alembic_version SET version_num = '9999'", newer.rpartition("/")[2])
    server.sql(f"ALTER DATABASE {read_only.rpartition('/')[2]} SET default_transaction_read_only = on")
    server.sql("INSERT INTO heads VALUES ('h2', 'u', 'c', 'h', 1, 1)", fresh.rpartition("/")[2])
    assert probe(PostgresAddress(fresh), "h2", judge) == ["judged"]
    assert server.sql("SELECT name, faults FROM head_reports", fresh.rpartition("/")[2]) == 'h2|["judged"]'
    assert probe(PostgresAddress(fresh), "removed", judge) == ["judged"]
    assert server.sql("SELECT count(*) FROM head_reports", fresh.rpartition("/")[2]) == "1"
    for url, said in ((empty, "does not belong to the pool"), (newer, "9999"), (read_only, "read-only")):
        (fault,) = probe(PostgresAddress(url), "h2", judge)
        assert said in fault
    (fault,) = probe(PostgresAddress("postgresql://gpupool@127.0.0.1:1/pool"), "h2", judge)
    assert "127.0.0.1" in fault
