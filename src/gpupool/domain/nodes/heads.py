"""The heads of a cluster: machines that may lead it, and the choice of the head that a machine follows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpupool.domain.units import format_duration

MAX_HEADS = 16
MAX_REPORT_AGE_S = 35.0  # a standby head reports every ten seconds


class HeadStatus(StrEnum):
    """The present state of a head."""

    LEADS = "leads"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Head:
    """A machine that may lead: its node, its API (``url`` and PEM certificate), and its GCS address as the leader."""

    name: str
    url: str
    certificate: str
    gcs_host: str
    gcs_port: int
    added_at: float = 0.0  # seconds since the epoch

    @property
    def gcs(self) -> tuple[str, int]:
        """Return host and port of the GCS."""
        return self.gcs_host, self.gcs_port

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Head:
        """Build from JSON values; ignore unknown keys. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        url, certificate = str(data["url"]), str(data["certificate"])
        if not url.startswith("https://"):
            raise ValueError(url)
        gcs = str(data["gcs_host"]), int(data["gcs_port"])
        return cls(str(data["name"]), url, certificate, *gcs, float(data.get("added_at", 0.0)))


@dataclass(frozen=True, slots=True)
class MemberKey:
    """The hash of the secret that identifies a machine of the cluster, and whether it may lead."""

    node: str
    secret_sha256: str
    head: bool


@dataclass(frozen=True, slots=True)
class HeadReport:
    """The last report of a standby head: its age, and the faults that would prevent a takeover."""

    name: str
    age_s: float
    faults: tuple[str, ...]


def takeover_faults(report: HeadReport | None) -> tuple[str, ...]:
    """Return why a standby head could not take over; a head that does not report could not."""
    if report is None:
        return ("It has never reported: its pool is not running, or cannot use the database.",)
    if report.age_s > MAX_REPORT_AGE_S:
        age = format_duration(report.age_s)
        return (f"It has not reported for {age}: its pool is not running, or cannot use the database.",)
    return report.faults


@dataclass(frozen=True, slots=True)
class HeadIdentity:
    """The proof to the database that a machine may lead a cluster: its name and the hash of its member secret.

    ``secret_sha256`` is empty for a head that is not enrolled yet.
    """

    node: str
    secret_sha256: str = ""


@dataclass(frozen=True, slots=True)
class FollowedHead:
    """The head that a machine follows, and the newest term in which that head is known to have led."""

    name: str
    term: int = 0


def choose_leader(terms: Mapping[str, int], present: FollowedHead | None) -> FollowedHead | None:
    """Return the head to follow: the one that leads in the newest term; keep the present one unless another is newer.

    ``terms`` maps the names of the heads that claim to lead to their terms. Standby and silent heads are not in it. A
    leader without contact to the database still claims to lead, but with an older term than its successor.
    """
    if not terms:
        return present
    name = max(terms, key=lambda head: (terms[head], head))
    if present is None or name == present.name or terms[name] > present.term:
        return FollowedHead(name, max(terms[name], present.term if present and present.name == name else 0))
    return present


def other_heads(heads: Iterable[Head], name: str) -> list[Head]:
    """Return all heads except one."""
    return [head for head in heads if head.name != name]
