"""The settings of OpenSSH for workloads: the host key of this user, and a block in ``~/.ssh``."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from gpupool.client.logins import logins_file
from gpupool.client.ssh.target import HOST_PREFIX, NO_TIMES, SessionTimes
from gpupool.domain.errors import ErrorCode, GpupoolError

HOST_KEY_ALIAS = "gpupool"
BLOCK_FILE = "gpupool.config"
MAX_CONFIG_BYTES = 1 << 20
_HEADING = "# Written by 'gpupool ssh --configure'. Changes are lost when it runs again.\n"
_CONDITION = re.compile(rb"^\s*(?:host|match)[\s=]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostKey:
    """The files of the host key: the private key (0600), and the line by which ssh knows it."""

    private: Path
    known_hosts: Path


def require_asyncssh() -> ModuleType:
    """Return ``asyncssh``. Raises ``GpupoolError(UNSUPPORTED)`` if the extra is not installed."""
    try:
        import asyncssh
    except ModuleNotFoundError as error:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "SSH needs the Python package asyncssh, which is not installed.",
            f"Install it: {shlex.quote(sys.executable)} -m pip install 'gpupool[ssh]'",
        ) from error
    return asyncssh


def host_key() -> HostKey:
    """Return the host key of this user; create it at the first call. Raises ``GpupoolError``."""
    asyncssh = require_asyncssh()
    folder = Path(logins_file()).parent
    files = HostKey(folder / "ssh_host_key", folder / "ssh_known_hosts")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not files.private.exists():
            _write(files.private, asyncssh.generate_private_key("ssh-ed25519").export_private_key(), keep=True)
        public = asyncssh.read_private_key(files.private).export_public_key().decode().split()[:2]
        line = f"{HOST_KEY_ALIAS} {' '.join(public)}\n".encode()
        if not files.known_hosts.exists() or files.known_hosts.read_bytes() != line:
            _write(files.known_hosts, line)
    except (OSError, asyncssh.KeyImportError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"The host key {files.private} cannot be used: {error}.", "Delete it and retry."
        ) from error
    return files


def ssh_options(key: HostKey, times: SessionTimes = NO_TIMES) -> dict[str, str]:
    """Return the settings with which ssh reaches workloads."""
    options = "".join(f" {shlex.quote(word)}" for word in times.options())
    return {
        "ProxyCommand": f"{_proxy_program()} ssh-proxy{options} %n",
        "HostKeyAlias": HOST_KEY_ALIAS,
        "UserKnownHostsFile": _quoted(str(key.known_hosts)),
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ServerAliveInterval": "15",
    }


def ssh_command(host: str, options: Sequence[str], command: Sequence[str], times: SessionTimes = NO_TIMES) -> list[str]:
    """Return the ``ssh`` command for a host. Raises ``GpupoolError`` if there is no ssh."""
    program = shutil.which("ssh")
    if program is None:
        raise GpupoolError(ErrorCode.UNSUPPORTED, "There is no ssh on this machine.", "Install OpenSSH's client.")
    settings = [word for name, value in ssh_options(host_key(), times).items() for word in ("-o", f"{name}={value}")]
    return [program, *settings, *options, "--", host, *command]


def configure(folder: Path, times: SessionTimes = NO_TIMES) -> Path:
    """Write the block to a file of its own in ``~/.ssh`` and include it; return the path. Repeating it is harmless.

    The user's own file gets one line at its start, where it applies to all hosts. Raises ``GpupoolError``.
    """
    block = folder / BLOCK_FILE
    lines = [f"Host {HOST_PREFIX}*", *(f"  {name} {value}" for name, value in ssh_options(host_key(), times).items())]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _write(block, (_HEADING + "\n".join(lines) + "\n").encode())
        _include(folder / "config", block)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE,
            f"{error.filename or folder} cannot be written: {error.strerror or error}.",
            f"Add this line at the start of {folder / 'config'}: Include {_quoted(str(block))}",
        ) from error
    return block


def _include(config: Path, block: Path) -> None:
    """Add the line that includes the block, unless it is there. Links stay links. Raises ``OSError``."""
    line = f"Include {_quoted(str(block))}\n".encode()
    real = Path(os.path.realpath(config))
    try:
        with real.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        _write(real, line)
        return
    if len(text) > MAX_CONFIG_BYTES:
        raise OSError(27, "it is too large to be changed safely", str(config))
    for row in text.splitlines(keepends=True):
        if _CONDITION.match(row):
            break
        if row.strip() == line.strip():
            return
    _write(real, line + b"\n" + text)


def _write(path: Path, data: bytes, *, keep: bool = False) -> None:
    """Write a file as a whole, with the mode and owner of the file that it replaces, else 0600.

    ``keep``: leave a file that was created meanwhile. Raises ``OSError``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                before = path.stat()
                os.fchmod(fd, before.st_mode & 0o777)
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, before.st_uid, before.st_gid)
            file.write(data)
            file.flush()
            os.fsync(fd)
        if keep:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _proxy_program() -> str:
    """Return this gpupool, for the shell that ssh starts."""
    found = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "gpupool" else shutil.which("gpupool")
    words = [str(Path(found).absolute())] if found else [sys.executable, "-m", "gpupool.cli.entry"]
    return " ".join(shlex.quote(word) for word in words).replace("%", "%%")


def _quoted(path: str) -> str:
    if '"' in path or "\n" in path:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"ssh cannot use the path {path!r}.", "Set XDG_CONFIG_HOME.")
    return f'"{path}"'.replace("%", "%%")
