"""The address of the database: a file, or a PostgreSQL URL, which never contains a password."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from gpupool.domain.errors import ErrorCode, GpupoolError

SCHEMES = ("postgresql", "postgres")
PASSWORD_LIMIT_BYTES = 1 << 12
_HINT = (
    "Write postgresql://USER@HOST:PORT/DATABASE and put the password into a file of mode 0600"
    " (--database-password-file, or PGPASSFILE in libpq's format)."
)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of a PostgreSQL database as libpq writes it, and its password file, if there is one."""

    url: str
    password_file: str | None = None

    def __post_init__(self) -> None:
        if not is_postgres(self.url) or "\0" in self.url:
            raise _invalid(f"'{self.shown}' is not the URL of a PostgreSQL database.")
        parts = urlsplit(self.url)
        if parts.password is not None or any(name.lower() == "password" for name, _ in parse_qsl(parts.query)):
            raise _invalid("The URL of a database must not contain a password: other users could see it.")

    @property
    def shown(self) -> str:
        """Return server and database for people, without user and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]

    def __str__(self) -> str:
        return self.shown

    def conninfo(self) -> str:
        """Return libpq's connection string; it is read anew each time, so that a changed password takes effect."""
        if self.password_file is None:
            return self.url
        from psycopg.conninfo import make_conninfo

        return make_conninfo(self.url, password=read_password(Path(self.password_file)))


def is_postgres(target: str) -> bool:
    """Return whether this is the URL of a PostgreSQL database."""
    return target.partition("://")[0] in SCHEMES and "://" in target


def read_password(path: Path) -> str:
    """Return the first line of a file that only its owner can read. Raises ``GpupoolError(INVALID_FILE)``."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise GpupoolError(
                    ErrorCode.INVALID_FILE,
                    f"The file {path} with the database's password is readable by other users.",
                    f"Restrict it: chmod 600 {path}",
                )
            line = file.read(PASSWORD_LIMIT_BYTES).decode().partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"The database's password cannot be read from {path} ({error}).", _HINT
        ) from error
    if not line or "\0" in line:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"There is no password in {path}.", _HINT)
    return line


def _invalid(message: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, message, _HINT)
