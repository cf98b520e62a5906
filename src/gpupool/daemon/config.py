"""The options of a pool, stored in ``<state>/config.json``, so that every restart uses the same ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupool.client.discovery import SYSTEM, USER, Location
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.time_windows import read_zone

if TYPE_CHECKING:
    from gpupool.store.backends.address import PostgresAddress

CONFIG_FILE = "config.json"
OFF = "off"
DASHBOARD = "127.0.0.1:8470"
GATEWAY_PORT = 8490
CLUSTER_PORT = 8650
_DOMAIN = re.compile(r"(?=.{1,200}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
CLUSTER_PORTS = 30  # Ray's, from there on
CONFIG_LIMIT_BYTES = 1 << 20


class PoolKind(StrEnum):
    """The owner of the pool: one user, or the machine (jobs then run as the submitting user)."""

    USER = USER
    SYSTEM = SYSTEM


class MachineRole(StrEnum):
    """The part of a machine in its pool."""

    ALONE = "alone"  # the whole pool
    HEAD = "head"  # control plane of a cluster, and a node of it
    NODE = "node"  # joined a cluster: no control plane here


class LogLevel(StrEnum):
    """The verbosity of the pool's own logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """All options of a pool.

    ``emulate`` is the emulated inventory's language (``4xT4,2xV100``); None: what the machine has. ``listen`` is
    ``host:port`` for the network and needs ``tls_cert`` and ``tls_key`` or ``tls_self_signed``; ``trusted_proxies`` are
    the networks of proxies whose ``X-Forwarded-For`` is believed. Finished work older
    than ``retention_days`` is forgotten. ``time_zone`` is that of time windows (None: the machine's). ``dashboard`` is
    the loopback ``host:port`` for browsers of this machine (``off``: none), ``oidc`` the file that says with which
    provider people sign in. ``gateway_port`` is the port of services (None: 8490 or a free one), with ``listen`` on the
    same address and with its certificate, else for this machine only. Ports of workloads have host names below
    ``gateway_domain``. ``commands`` replaces the program of a child by
    name (tests use it).

    ``database`` is the URL of a PostgreSQL database (None: a SQLite file in the state folder), and
    ``database_password_file`` the private file that has its password.

    In a cluster (``role``) a machine has ``cluster_address`` there and uses ports from ``cluster_port`` on; a node also
    knows where Ray is on the head (``head``, host:port) and the API of its pool (``head_url``).
    """

    state_dir: str
    run_dir: str
    kind: PoolKind = PoolKind.USER
    emulate: str | None = None
    node_name: str | None = None
    listen: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_self_signed: bool = False
    trusted_proxies: tuple[str, ...] = ()
    log_level: LogLevel = LogLevel.INFO
    retention_days: int = 90
    time_zone: str | None = None
    dashboard: str = DASHBOARD
    oidc: str | None = None
    gateway_port: int | None = None
    gateway_domain: str | None = None
    database: str | None = None
    database_password_file: str | None = None
    role: MachineRole = MachineRole.ALONE
    cluster_address: str | None = None
    cluster_port: int = CLUSTER_PORT
    head: str | None = None
    head_url: str | None = None
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise _invalid("--tls-cert and --tls-key must be given together.", "Give both, or neither.")
        if self.listen and not (self.tls_cert or self.tls_self_signed):
            raise _invalid(
                "A pool listens on a network only with TLS.",
                "Give --tls-cert and --tls-key, or --tls-self-signed to create a certificate.",
            )
        if self.trusted_proxies:
            from gpupool.api.server.proxies import TrustedProxies

            TrustedProxies(self.trusted_proxies)
        self.dashboard_address()
        self.database_address()
        if self.time_zone is not None:
            read_zone(self.time_zone)
        if not 1024 <= self.cluster_port <= 65536 - CLUSTER_PORTS:
            raise _invalid(f"{self.cluster_port} is not a port for a cluster.", f"{CLUSTER_PORTS} ports are used.")
        if self.gateway_port is not None and not 1 <= self.gateway_port <= 65535:
            raise _invalid(f"{self.gateway_port} is not a port.", "Give --gateway-port a number from 1 to 65535.")
        if self.gateway_domain is not None and _DOMAIN.fullmatch(self.gateway_domain) is None:
            raise _invalid(
                f"'{self.gateway_domain[:80]}' is not a domain.", "Give --gateway-domain one like ports.example.org."
            )
        if self.retention_days < 1:
            raise _invalid("The retention must be at least one day.", "Omit it for 90 days.")

    @property
    def location(self) -> Location:
        """Return where clients of this pool find it."""
        return Location(self.state_dir, self.run_dir, str(self.kind))

    def dashboard_address(self) -> tuple[str, int] | None:
        """Return host and port for browsers of this machine; None if there is no dashboard."""
        if self.dashboard == OFF:
            return None
        host, _, port = self.dashboard.rpartition(":")
        if not port.isdecimal() or int(port) > 65535 or not is_loopback(host.strip("[]")):
            raise _invalid(
                f"'{self.dashboard[:80]}' is not an address for the dashboard.",
                "Give a loopback address such as 127.0.0.1:8470, or off; --listen serves a network.",
            )
        return host.strip("[]"), int(port)

    def database_address(self) -> PostgresAddress | None:
        """Return the address of the PostgreSQL database; None: the pool has its own file."""
        if self.database is None:
            return None
        from gpupool.store.backends.address import (
            PostgresAddress,  # imports SQLAlchemy, which most starts do not need
        )

        return PostgresAddress(self.database, self.database_password_file)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def for_location(cls, location: Location) -> PoolConfig:
        """Return the stored options of a place, or the defaults; the place's own folders override them.

        Raises ``GpupoolError`` (INVALID_FILE) for a file that cannot be read as options.
        """
        stored = read_config(location.state_dir) or {}
        places = {"state_dir": location.state_dir, "run_dir": location.run_dir, "kind": location.kind}
        try:
            return decode(cls, {**stored, **places})
        except (TypeError, ValueError, AttributeError) as error:
            raise _broken(location.state_dir, str(error)) from error


def is_loopback(host: str) -> bool:
    """Return whether a numeric address is a loopback address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def config_path(state_dir: str) -> Path:
    """Return the file of a pool's options."""
    return Path(state_dir) / CONFIG_FILE


def read_config(state_dir: str) -> dict[str, Any] | None:
    """Return the stored options as JSON, or None if there are none; raise ``GpupoolError`` (INVALID_FILE)."""
    try:
        with config_path(state_dir).open("rb") as file:
            data = json.loads(file.read(CONFIG_LIMIT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _broken(state_dir, str(error)) from error
    if not isinstance(data, dict):
        raise _broken(state_dir, "it is not an object")
    return data


def load_config(state_dir: str) -> PoolConfig:
    """Return the options of the pool in a state folder, for its own processes.

    Raises ``GpupoolError`` (INVALID_FILE) if there are none or they cannot be read.
    """
    data = read_config(state_dir)
    if data is None:
        raise _broken(state_dir, "it does not exist")
    try:
        return decode(PoolConfig, {**data, "state_dir": state_dir})
    except (TypeError, ValueError, AttributeError) as error:
        raise _broken(state_dir, str(error)) from error


def save_config(config: PoolConfig) -> None:
    """Write the options atomically, readable only by the owner. Raises ``OSError``."""
    write_atomically(config_path(config.state_dir), _text_of(config), 0o600)


def _text_of(config: PoolConfig) -> str:
    return json.dumps(config.to_dict(), indent=2) + "\n"


class StoredOptions:
    """The file of a pool's options as it is now, to restore it after a start with other options has failed."""

    def __init__(self, state_dir: str) -> None:
        self._path = config_path(state_dir)
        self._text = self._read()

    def restore(self, *, replaced: PoolConfig) -> None:
        """Write the file again, or remove it if there was none, unless it has other options than ``replaced``.

        Never raises: the error of the start is reported instead.
        """
        if self._read() != _text_of(replaced):
            return
        with contextlib.suppress(OSError):
            if self._text is None:
                self._path.unlink()
            else:
                write_atomically(self._path, self._text, 0o600)

    def _read(self) -> str | None:
        try:
            with self._path.open(encoding="utf-8") as file:
                return file.read(CONFIG_LIMIT_BYTES)
        except (OSError, ValueError):
            return None


def write_atomically(path: Path, text: str, mode: int) -> None:
    """Replace a file's content so that a reader sees the old or the new one. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _invalid(message: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, message, hint)


def _broken(state_dir: str, why: str) -> GpupoolError:
    path = config_path(state_dir)
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The pool's options in {path} cannot be read: {why}.",
        "Remove the file and start the pool with 'gpupool up' and its options.",
    )
