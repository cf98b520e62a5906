"""The account that runs a visitor's programs, and its default environment."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from gpupool.domain.people.access import Actor
from gpupool.services.pool import PoolInfo

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
DEFAULT_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class SystemAccount:
    """Home, shell and environment; ``known`` is false where the machine has no such account."""

    home: str
    shell: str
    environment: Mapping[str, str]
    known: bool = True


def account_of(info: PoolInfo, actor: Actor) -> SystemAccount:
    """Return the account of a visitor: the visitor's own in a system pool, else the pool's owner.

    A page has no shell environment to pass on, so the login environment is made from the user database.
    """
    uid = actor.uid if info.kind == "system" else info.owner_uid
    base = {"PATH": os.environ.get("PATH") or DEFAULT_PATH, "LANG": os.environ.get("LANG") or "C.UTF-8"}
    try:
        entry = pwd.getpwuid(uid) if uid is not None else None
    except KeyError:
        entry = None
    if entry is None:
        return SystemAccount("/", DEFAULT_SHELL, base | {"USER": actor.user}, known=False)
    name, home, shell = entry.pw_name, entry.pw_dir or "/", entry.pw_shell or DEFAULT_SHELL
    if shell.endswith(("nologin", "false")):
        shell = DEFAULT_SHELL
    return SystemAccount(home, shell, base | {"HOME": home, "USER": name, "LOGNAME": name, "SHELL": shell})
