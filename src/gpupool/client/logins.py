"""The pools that this user has logged in to: ``~/.config/gpupool/logins.json`` (0600).

On the path of every ``gpupool run``: imports ``os`` alone at module level.
"""

# pathlib takes longer to import than everything here takes to run:
# ruff: noqa: PTH103, PTH105, PTH111, PTH117, PTH120, PTH123

from __future__ import annotations

import os

from gpupool.client.locate import Remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Logins = dict[str, Any]

FILE_LIMIT_BYTES = 4 << 20
CHOICE = "GPUPOOL_POOL"
LOCAL = "local"  # as a choice: the pool of this machine, whatever one is logged in to


def logins_file() -> str:
    """Where they are kept."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return f"{base}/gpupool/logins.json"


def chosen() -> Remote | None:
    """The pool to use over the network: the one named by ``GPUPOOL_POOL``, else the one logged in to last.

    Raises ``GpupoolError`` (INVALID_REQUEST for a name that is not known, INVALID_FILE).
    """
    named = os.environ.get(CHOICE)
    if named == LOCAL:
        return None
    try:
        logins = load()
    except FileNotFoundError:
        logins = {"pools": {}}
    name = named or logins.get("current")
    found = logins["pools"].get(name) if name else None
    if found is None:
        if named:
            raise _refused(f"You are not logged in to a pool '{named[:80]}'.", "See 'gpupool login' without more.")
        return None
    return Remote(found["url"], found["token"], None, found.get("certificate"), login=True)


def load() -> Logins:
    """``current`` (a name or None), and ``pools`` by name. Raises ``FileNotFoundError``, ``GpupoolError``."""
    with open(logins_file(), "rb") as file:
        text = file.read(FILE_LIMIT_BYTES)
    import json

    try:
        data = json.loads(text)
        if isinstance(data["pools"], dict):
            return {"current": data.get("current"), "pools": data["pools"]}
    except (ValueError, KeyError, TypeError):
        pass
    raise _broken("it is not what gpupool wrote")


def known() -> Logins:
    """As ``load``; nothing when there are none."""
    try:
        return load()
    except FileNotFoundError:
        return {"current": None, "pools": {}}


def save(logins: Logins) -> None:
    """Replace the file in one step; nobody else may read it. Raises ``GpupoolError(INVALID_FILE)``."""
    import json

    path = logins_file()
    temporary = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(json.dumps(logins, indent=2) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        raise _broken(error.strerror or str(error)) from error


def _broken(what: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(
        ErrorCode.INVALID_FILE, f"{logins_file()} cannot be used: {what}.", "Correct or remove it, and log in again."
    )


def _refused(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
