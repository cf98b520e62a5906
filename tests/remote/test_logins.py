"""Logging in: by code or token, to a pool whose certificate is known; and what a login leaves on the disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from remote_world import Head, Laptop


def fresh(head: Head, folder: Path) -> Laptop:
    """Return a machine that is not logged in to a pool."""
    for name in ("home", "project"):
        (folder / name).mkdir(parents=True)
    return Laptop(folder / "home", folder / "project", head.url, head.fingerprint)


def test_login_code_works_once(head: Head, tmp_path: Path) -> None:
    command = head.pool.text("login-code", "--expires", "1h").split()
    assert command[:3] == ["gpupool", "login", head.url]
    first, second = fresh(head, tmp_path / "1"), fresh(head, tmp_path / "2")
    first(*command[1:], "--name", "lab")
    assert json.loads(first.text("whoami", "--json"))["via"].startswith("token")
    kept = first.home / ".config/gpupool/logins.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    again = second(*command[1:], ok=False)
    assert (again.returncode, b"UNAUTHENTICATED" in again.stderr) == (125, True)
    assert not (second.home / ".config/gpupool/logins.json").exists()


def test_token_is_not_sent_to_other_certificate(head: Head, tmp_path: Path) -> None:
    machine, token = fresh(head, tmp_path), head.token()
    said = machine("login", head.url, "--fingerprint", "0" * 64, stdin=token.encode(), ok=False)
    assert b"another certificate" in said.stderr
    said = machine("login", head.url, stdin=token.encode(), ok=False)  # no person is there to ask
    assert (said.returncode, b"--fingerprint" in said.stderr) == (125, True)
    machine.login(token)
    kept = machine.home / ".config/gpupool/logins.json"
    logins = json.loads(kept.read_text())
    other = Path(head.pool.folder / "other.pem")
    _other_certificate(other)
    logins["pools"]["lab"]["certificate"] = other.read_text()
    kept.write_text(json.dumps(logins))
    said = machine("ps", ok=False)
    assert (said.returncode, b"certificate" in said.stderr.lower()) == (125, True)


def _other_certificate(path: Path) -> None:
    from gpupool.api.server.tls import CertificateFiles, ensure_self_signed

    ensure_self_signed(CertificateFiles(path, path.with_suffix(".key")), "127.0.0.1")


def test_several_logins_and_logout(head: Head, laptop: Laptop) -> None:
    laptop("login", head.url, "--name", "second", "--fingerprint", head.fingerprint, stdin=head.token().encode())
    pools = json.loads(laptop.text("login", "--json"))["pools"]
    assert [(pool["name"], pool["current"]) for pool in pools] == [("lab", False), ("second", True)]
    laptop("login", "lab")
    laptop("logout", "lab")
    pools = json.loads(laptop.text("login", "--json"))["pools"]
    assert [(pool["name"], pool["current"]) for pool in pools] == [("second", False)], "nobody chose the other one"
    assert laptop("ps", env={**laptop.env, "GPUPOOL_POOL": "second"}).returncode == 0
    unknown = laptop("ps", env={**laptop.env, "GPUPOOL_POOL": "third"}, ok=False)
    assert b"not logged in to a pool 'third'" in unknown.stderr
    laptop("logout", "--all")
    assert json.loads((laptop.home / ".config/gpupool/logins.json").read_text()) == {"current": None, "pools": {}}


def test_wrong_token_stores_no_login(head: Head, tmp_path: Path) -> None:
    machine = fresh(head, tmp_path)
    for token in (b"gpt_no_such", b"", b"\n"):
        said = machine("login", head.url, "--fingerprint", head.fingerprint, stdin=token, ok=False)
        assert (said.returncode, b"UNAUTHENTICATED" in said.stderr) == (125, True)
    assert not (machine.home / ".config/gpupool/logins.json").exists()
