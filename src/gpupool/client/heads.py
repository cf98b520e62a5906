"""The heads of a pool that a login has learnt: ``~/.config/gpupool/heads/`` (0700, files 0600).

A list is kept for the address that was logged in to, together with how that one is trusted: whoever reaches the same
address by other means (``GPUPOOL_CA``, say) has none. It is taken only from a head that is trusted already, over a
connection that shows its certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpupool.client import trust
from gpupool.client.endpoint import TlsEndpoint
from gpupool.client.logins import logins_file
from gpupool.domain.heads import MOST_HEADS

TARGET = "/v1/heads"
FRESH_S = 600.0  # how long a list is good before the pool is asked again
ANSWER_LIMIT_BYTES = 1 << 20
LONGEST_NAME, LONGEST_URL, LONGEST_CERTIFICATE = 253, 300, 16384


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A machine that may lead the pool: where its API is, and the only certificate (PEM) that is accepted there."""

    name: str
    url: str
    certificate: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KnownHead:
        """From JSON values, strange keys left out. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        name, url, certificate = data["name"], data["url"], data["certificate"]
        for text, limit in ((name, LONGEST_NAME), (url, LONGEST_URL), (certificate, LONGEST_CERTIFICATE)):
            if not isinstance(text, str) or not 0 < len(text) <= limit or not text.isascii():
                raise ValueError(str(text)[:80])
        parts = urlsplit(url)
        if url != f"https://{parts.netloc}" or not parts.hostname or "@" in url or not name.isprintable():
            raise ValueError(url)
        _ = parts.port, parts.hostname.encode("idna")  # both can be looked up
        if certificate.count("-----BEGIN") != 1:
            raise ValueError("not one certificate")
        trust.pinned(certificate)  # it can be used to check a server
        return cls(name, url, certificate)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What is kept: the heads, when they were asked for (seconds since the epoch), which one was used last (a URL)."""

    heads: tuple[KnownHead, ...] = ()
    asked_at: float = 0.0
    last: str = ""

    @property
    def fresh(self) -> bool:
        """Whether there is no need yet to ask again."""
        return 0.0 <= time.time() - self.asked_at < FRESH_S


def heads_of(answer: Any) -> tuple[KnownHead, ...]:
    """The heads in the answer to ``GET /v1/heads``. Raises ``ValueError`` for anything else."""
    try:
        rows = answer["heads"]
        if not isinstance(rows, list) or len(rows) > MOST_HEADS:
            raise ValueError("too many heads")
        return tuple(KnownHead.from_dict(row) for row in rows)
    except (KeyError, TypeError, ssl.SSLError) as error:
        raise ValueError("not a list of heads") from error


def kept_for(endpoint: TlsEndpoint) -> Path:
    """The file for an address, and for how it is trusted; the token is not part of it."""
    name = hashlib.sha256(f"{endpoint.url}\n{_trust_in(endpoint)}".encode()).hexdigest()
    return _folder() / f"{name[:32]}.json"


def _trust_in(endpoint: TlsEndpoint) -> str:
    if endpoint.fingerprint is not None:
        return f"sha256:{trust.plain_fingerprint(endpoint.fingerprint)}"
    if endpoint.certificate is not None:
        with contextlib.suppress(ValueError):
            return f"sha256:{trust.fingerprint_of_pem(endpoint.certificate)}"
        return f"text:{endpoint.certificate}"  # nobody has it, and connecting says so
    return "system" if endpoint.ca_file is None else f"file:{endpoint.ca_file}"


def _folder() -> Path:
    return Path(logins_file()).with_name("heads")


def read(path: Path) -> Learnt | None:
    """What is kept in a file; None when there is none, or it is not what gpupool wrote."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(ANSWER_LIMIT_BYTES))
        return Learnt(heads_of(data), float(data["asked_at"]), str(data["last"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, learnt: Learnt) -> None:
    """Replace the file in one step; nobody else may read it. A folder that cannot be written is no reason to fail."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(json.dumps(asdict(learnt), indent=1) + "\n")
        temporary.replace(path)


def forget_all_but(endpoints: Iterable[TlsEndpoint]) -> None:
    """Remove the lists that belong to none of these."""
    wanted = {kept_for(endpoint) for endpoint in endpoints}
    with contextlib.suppress(OSError):
        for path in list(_folder().iterdir()):
            if path not in wanted:
                path.unlink()
