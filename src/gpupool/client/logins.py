"""The user's logins to pools: ``~/.config/gpupool/logins.json`` (0600).

On the path of every ``gpupool run``: imports only ``os`` at module level.
"""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH103, PTH105, PTH111, PTH117, PTH120, PTH123

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Logins = dict[str, Any]

FILE_LIMIT_BYTES = 4 << 20
POOL_VARIABLE = "GPUPOOL_POOL"
LOCAL = "local"  # selects the pool of this machine instead of a login


def logins_file() -> str:
    """Return the path of the file."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return f"{base}/gpupool/logins.json"


def current_login() -> Logins | None:
    """Return the login to use: the one named by ``GPUPOOL_POOL``, else the current one, else None.

    Raises ``GpupoolError`` (INVALID_REQUEST for an unknown name, INVALID_FILE).
    """
    named = os.environ.get(POOL_VARIABLE)
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
            raise _request_error(
                f"You are not logged in to a pool '{named[:80]}'.", "List your pools with 'gpupool login'."
            )
        return None
    return dict(found)


def load() -> Logins:
    """Return ``current`` (a name or None), and ``pools`` by name. Raises ``FileNotFoundError``, ``GpupoolError``."""
    with open(logins_file(), "rb") as file:
        text = file.read(FILE_LIMIT_BYTES)
    import json

    try:
        data = json.loads(text)
        if isinstance(data["pools"], dict):
            return {"current": data.get("current"), "pools": data["pools"]}
    except (ValueError, KeyError, TypeError):
        pass
    raise _file_error("gpupool did not write it")


def load_or_empty() -> Logins:
    """Return the same as ``load``, or no logins when there is no file."""
    try:
        return load()
    except FileNotFoundError:
        return {"current": None, "pools": {}}


def save(logins: Logins) -> None:
    """Replace the file atomically, with mode 0600. Raises ``GpupoolError(INVALID_FILE)``."""
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
        raise _file_error(error.strerror or str(error)) from error


def _file_error(what: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(
        ErrorCode.INVALID_FILE, f"{logins_file()} cannot be used: {what}.", "Correct or remove it, and log in again."
    )


def _request_error(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
