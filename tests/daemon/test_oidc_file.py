"""The file with the settings of the provider: valid values, and an error for each invalid one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpupool.client.discovery import Location
from gpupool.daemon.config import PoolConfig, save_config
from gpupool.daemon.doctor.check import DoctorContext, Severity
from gpupool.daemon.doctor.peers import provider
from gpupool.daemon.oidc_file import read_provider
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Role
from gpupool.domain.people.identity import ProjectRule, RoleRule

LEAST = 'issuer = "https://login.example"\nclient_id = "gpupool"\npublic_url = "https://gpu1.example:8443/"\n'
WHOLE = """
client_secret = "hush"
name = "Example"
scopes = ["openid", "groups"]
allowed_domains = ["lab.example"]
make_users = true
default_role = "none"
[users]
"ada@lab.example" = "lovelace"
[[roles]]
claim = "groups"
value = "admins"
role = "admin"
[[projects]]
claim = "groups"
value = "vision-lab"
project = "vision"
"""


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "oidc.toml"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_valid_file_is_read(tmp_path: Path) -> None:
    found = read_provider(written(tmp_path, LEAST + WHOLE))
    assert found.redirect_uri == "https://gpu1.example:8443/login/oidc/callback"
    assert (found.title, found.client_secret, found.scopes) == ("Example", "hush", ("openid", "groups"))
    assert found.roles == (RoleRule("groups", "admins", Role.ADMIN),)
    assert found.projects == (ProjectRule("groups", "vision-lab", "vision"),)
    assert (found.users, found.default_role, found.make_users) == ((("ada@lab.example", "lovelace"),), None, True)
    assert read_provider(written(tmp_path, LEAST)).title == "login.example"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'issuer' is missing"),
        (LEAST.replace("https://login", "http://login"), "must begin with https"),
        (LEAST.replace("https://gpu1", "http://gpu1"), "must begin with https"),
        (LEAST.replace("8443/", "8443/sub"), "must be only an address"),
        (LEAST + 'colour = "red"', "'colour' is unknown"),
        (LEAST + "make_users = 1", "'make_users' has the wrong type"),
        (LEAST + 'scopes = ["email"]', "openid"),
        (LEAST + 'default_role = "king"', "not a role"),
        (LEAST + '[[roles]]\nclaim = "groups"', "claim, value and role"),
        (LEAST + '[[projects]]\nclaim = "groups"\nvalue = "a"', "claim, value and project"),
        (LEAST + "[", "cannot be used"),
        (LEAST + "\ud800", "cannot be used"),
    ],
)
def test_errors_in_file_are_reported(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "oidc.toml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    file.chmod(0o600)
    with pytest.raises(GpupoolError, match=why) as refused:
        read_provider(str(file))
    assert refused.value.code is ErrorCode.INVALID_FILE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_file_with_secret_must_be_private(tmp_path: Path, mode: int) -> None:
    with pytest.raises(GpupoolError, match="other users may") as refused:
        read_provider(written(tmp_path, LEAST, mode))
    assert "chmod 600" in refused.value.hint


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8470", "192.0.2.1:80", "localhost:8470", "127.0.0.1", "127.0.0.1:x", ":1"]
)
def test_dashboard_without_tls_listens_only_locally(tmp_path: Path, address: str) -> None:
    with pytest.raises(GpupoolError, match="not an address for the dashboard"):
        PoolConfig(str(tmp_path), str(tmp_path), dashboard=address)


class _Answering(BaseHTTPRequestHandler):
    said: dict[str, str] = {}  # noqa: RUF012 - set by each test

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.said).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_doctor_checks_the_provider(tmp_path: Path, issuer: str) -> None:
    context = DoctorContext(tmp_path, tmp_path)
    assert not list(provider(context))
    file = written(tmp_path, LEAST.replace("https://login.example", issuer))
    save_config(PoolConfig.for_location(Location(str(tmp_path), str(tmp_path), "user")))
    assert not list(provider(context))
    save_config(PoolConfig(str(tmp_path), str(tmp_path), oidc=file))
    whole = dict.fromkeys(("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"), issuer)
    told = {Severity.PROBLEM: [{}, whole | {"issuer": f"{issuer}/"}], Severity.OK: [whole]}
    for level, answers in told.items():
        for _Answering.said in answers:
            assert [finding.level for finding in provider(context)] == [level]
    Path(file).write_text(LEAST.replace("https://login.example", "http://127.0.0.1:9"))
    assert [finding.level for finding in provider(context)] == [Severity.WARNING]
    Path(file).chmod(0o644)
    assert [finding.level for finding in provider(context)] == [Severity.PROBLEM]
