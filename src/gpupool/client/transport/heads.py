"""The heads of a pool that a login has learned: ``~/.config/gpupool/heads/`` (0700, files 0600).

A list is stored for the address of the login and for the way in which that address is trusted. A connection to the same
address with another trust anchor (``GPUPOOL_CA``, for example) has no list. A list is accepted only from a trusted
head, over a connection with its certificate.
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

from gpupool.client.logins import logins_file
from gpupool.client.transport import tls_pinning
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.domain.nodes.heads import MAX_HEADS

HEADS_PATH = "/v1/heads"
MAX_AGE_S = 600.0  # an older list is fetched again
ANSWER_LIMIT_BYTES = 1 << 20
MAX_NAME, MAX_URL, MAX_CERTIFICATE = 253, 300, 16384


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head of the pool: its API's address, and the only certificate (PEM) that is accepted there."""

    name: str
    url: str
    certificate: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KnownHead:
        """Read a head from JSON values; unknown keys are ignored.

        Raises ``KeyError``, ``TypeError`` or ``ValueError``.
        """
        name, url, certificate = data["name"], data["url"], data["certificate"]
        for text, limit in ((name, MAX_NAME), (url, MAX_URL), (certificate, MAX_CERTIFICATE)):
            if not isinstance(text, str) or not 0 < len(text) <= limit or not text.isascii():
                raise ValueError(str(text)[:80])
        parts = urlsplit(url)
        if url != f"https://{parts.netloc}" or not parts.hostname or "@" in url or not name.isprintable():
            raise ValueError(url)
        _ = parts.port, parts.hostname.encode("idna")  # both must be valid
        if certificate.count("-----BEGIN") != 1:
            raise ValueError("not one certificate")
        tls_pinning.pinned_context(certificate)  # it must be usable to verify a server
        return cls(name, url, certificate)


@dataclass(frozen=True, slots=True)
class HeadList:
    """The stored heads, when they were fetched (seconds since the epoch), and the URL of the one used last."""

    heads: tuple[KnownHead, ...] = ()
    asked_at: float = 0.0
    last: str = ""

    @property
    def fresh(self) -> bool:
        """Return whether the list is recent enough to be used without a new request."""
        return 0.0 <= time.time() - self.asked_at < MAX_AGE_S


def parse_heads(answer: Any) -> tuple[KnownHead, ...]:
    """Return the heads in the answer to ``GET /v1/heads``. Raises ``ValueError`` for anything else."""
    try:
        rows = answer["heads"]
        if not isinstance(rows, list) or len(rows) > MAX_HEADS:
            raise ValueError("too many heads")
        return tuple(KnownHead.from_dict(row) for row in rows)
    except (KeyError, TypeError, ssl.SSLError) as error:
        raise ValueError("not a list of heads") from error


def heads_file(endpoint: TlsEndpoint) -> Path:
    """Return the file for an address and its trust anchor; the token is not part of the name."""
    name = hashlib.sha256(f"{endpoint.url}\n{_trust_anchor(endpoint)}".encode()).hexdigest()
    return _folder() / f"{name[:32]}.json"


def _trust_anchor(endpoint: TlsEndpoint) -> str:
    if endpoint.fingerprint is not None:
        return f"sha256:{tls_pinning.normalize_fingerprint(endpoint.fingerprint)}"
    if endpoint.certificate is not None:
        with contextlib.suppress(ValueError):
            return f"sha256:{tls_pinning.fingerprint_of_pem(endpoint.certificate)}"
        return f"text:{endpoint.certificate}"  # it matches no server, so that connecting fails
    return "system" if endpoint.ca_file is None else f"file:{endpoint.ca_file}"


def _folder() -> Path:
    return Path(logins_file()).with_name("heads")


def load_heads(path: Path) -> HeadList | None:
    """Return the contents of a file; None when there is none, or gpupool did not write it."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(ANSWER_LIMIT_BYTES))
        return HeadList(parse_heads(data), float(data["asked_at"]), str(data["last"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_heads(path: Path, learnt: HeadList) -> None:
    """Replace the file atomically, with mode 0600. Write errors are ignored."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(json.dumps(asdict(learnt), indent=1) + "\n")
        temporary.replace(path)


def delete_other_lists(endpoints: Iterable[TlsEndpoint]) -> None:
    """Delete the lists that belong to none of these endpoints."""
    wanted = {heads_file(endpoint) for endpoint in endpoints}
    with contextlib.suppress(OSError):
        for path in list(_folder().iterdir()):
            if path not in wanted:
                path.unlink()
