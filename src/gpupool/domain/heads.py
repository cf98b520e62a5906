"""The heads of a cluster: machines that may lead it, and which of them a machine follows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_HEADS = 16


class HeadStanding(StrEnum):
    """What a head does at present."""

    LEADS = "leads"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Head:
    """A machine that may lead: its node, its API (``url`` and certificate, PEM), where its GCS is when it leads."""

    name: str
    url: str
    certificate: str
    gcs_host: str
    gcs_port: int
    added_at: float = 0.0  # seconds since the epoch

    @property
    def gcs(self) -> tuple[str, int]:
        """Host and port."""
        return self.gcs_host, self.gcs_port

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Head:
        """From JSON values, strange keys left out. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        url, certificate = str(data["url"]), str(data["certificate"])
        if not url.startswith("https://"):
            raise ValueError(url)
        gcs = str(data["gcs_host"]), int(data["gcs_port"])
        return cls(str(data["name"]), url, certificate, *gcs, float(data.get("added_at", 0.0)))


@dataclass(frozen=True, slots=True)
class MemberKey:
    """By which secret (its hash) a machine of the cluster is known, and whether it may lead."""

    node: str
    secret_sha256: str
    head: bool


@dataclass(frozen=True, slots=True)
class Followed:
    """The head that a machine follows, and the newest term in which that one is known to have led."""

    name: str
    term: int = 0


def choose(terms: Mapping[str, int], present: Followed | None) -> Followed | None:
    """Whom to follow: whoever says that it leads in the newest term; the present one as long as nobody's is newer.

    ``terms`` has the heads that say they lead, by name; who waits, or does not answer, is not in it. A leader that is
    cut off from the database still says so, with a term that is older than its successor's.
    """
    if not terms:
        return present
    name = max(terms, key=lambda head: (terms[head], head))
    if present is None or name == present.name or terms[name] > present.term:
        return Followed(name, max(terms[name], present.term if present and present.name == name else 0))
    return present


def others(heads: Iterable[Head], name: str) -> list[Head]:
    """All but one."""
    return [head for head in heads if head.name != name]
