"""The file of the sign-in provider (TOML, readable only by its owner)."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Role
from gpupool.domain.people.identity import ProjectRule, ProviderSettings, RoleRule

_LIMIT_BYTES = 256 * 1024
_TEXTS = ("issuer", "client_id", "client_secret", "public_url", "name", "user_claim", "ca_file")
_FLAGS = ("trust_email", "make_users", "match_users")
_LISTS = ("scopes", "allowed_domains")
_NEEDED = ("issuer", "client_id", "public_url")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def read_provider(path: str) -> ProviderSettings:
    """Read the settings of a file; raise ``GpupoolError(INVALID_FILE)`` with the reason."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
        data = tomllib.loads(file.read_bytes()[:_LIMIT_BYTES].decode())
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from error
    if stat.S_IMODE(mode) & 0o077:
        raise _wrong(path, "other users may read or change it, and it contains a secret", f"Run 'chmod 600 {path}'.")
    try:
        return _settings(data)
    except ValueError as error:
        raise _wrong(path, str(error)) from error


def _settings(data: dict[str, Any]) -> ProviderSettings:
    known = {*_TEXTS, *_FLAGS, *_LISTS, "default_role", "roles", "projects", "users"}
    if strange := sorted(data.keys() - known):
        raise ValueError(f"'{strange[0]}' is unknown")
    if missing := [name for name in _NEEDED if not data.get(name)]:
        raise ValueError(f"'{missing[0]}' is missing")
    found: dict[str, Any] = {}
    for names, kind in ((_TEXTS, str), (_FLAGS, bool)):
        found |= {name: _a(kind, name, data[name]) for name in names if name in data}
    found |= {name: tuple(_a(str, name, x) for x in _a(list, name, data[name])) for name in _LISTS if name in data}
    for name in ("issuer", "public_url"):
        _need_tls(name, found[name])
    found["public_url"] = found["public_url"].rstrip("/")
    if "openid" not in found.get("scopes", ("openid",)):
        raise ValueError("'scopes' must contain 'openid'")
    return ProviderSettings(**found, **_rules(data))


def _rules(data: dict[str, Any]) -> dict[str, Any]:
    rules = tuple(_rule(entry) for entry in _a(list, "roles", data.get("roles", [])))
    users = _a(dict, "users", data.get("users", {}))
    default = data.get("default_role", "member")
    return {
        "roles": rules,
        "projects": tuple(_project_rule(entry) for entry in _a(list, "projects", data.get("projects", []))),
        "users": tuple((value, _a(str, "users", name)) for value, name in users.items()),
        "default_role": None if default == "none" else _role(default),
    }


def _rule(entry: Any) -> RoleRule:
    if not isinstance(entry, dict) or entry.keys() != {"claim", "value", "role"}:
        raise ValueError("each of [[roles]] needs claim, value and role")
    return RoleRule(_a(str, "claim", entry["claim"]), _a(str, "value", entry["value"]), _role(entry["role"]))


def _project_rule(entry: Any) -> ProjectRule:
    if not isinstance(entry, dict) or entry.keys() != {"claim", "value", "project"}:
        raise ValueError("each of [[projects]] needs claim, value and project")
    claim, value, project = (_a(str, name, entry[name]) for name in ("claim", "value", "project"))
    return ProjectRule(claim, value, project)


def _role(word: Any) -> Role:
    if word not in list(Role):
        raise ValueError(f"{str(word)[:40]!r} is not a role: {', '.join(Role)}")
    return Role(word)


def _a(kind: type, name: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"'{name}' has the wrong type")  # noqa: TRY004 - all of these are one error to the caller
    return value


def _need_tls(name: str, url: str) -> None:
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" and parts.hostname) and not local:
        raise ValueError(f"'{name}' must begin with https://")
    if parts.query or parts.fragment or parts.username or (name == "public_url" and parts.path.rstrip("/")):
        raise ValueError(f"'{name}' must be only an address")


def _wrong(path: str, why: str, hint: str = "") -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"{path} cannot be used for sign-in: {why}.",
        hint or "docs/dashboard.md has an example.",
    )
