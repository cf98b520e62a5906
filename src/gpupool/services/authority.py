"""Who signs for the machines of a cluster, as the services see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpupool.domain.heads import Head
from gpupool.domain.joining import Versions


@dataclass(frozen=True, slots=True)
class Papers:
    """What the authority gives a machine: its certificate and the pool's own authority's (PEM), and Ray's token."""

    certificate: str
    ca: str
    ray_token: str


class Authority(Protocol):
    """Whoever signs for the machines of the cluster."""

    @property
    def versions(self) -> Versions:
        """What runs on the head."""

    @property
    def address(self) -> tuple[str, int]:
        """Where Ray's GCS is: an address and a port."""

    def fingerprint(self) -> str:
        """SHA-256 of the certificate that the head shows over the network. Raises INVALID_FILE."""

    def papers(self, node: str, address: str, request_pem: str) -> Papers:
        """A certificate for the key of a signing request. Raises INVALID_REQUEST for one that is none."""

    def secret_key(self) -> str:
        """The key that it signs with (PEM), for another head. Raises INVALID_FILE."""

    def checked(self, certificate_pem: str) -> str:
        """A certificate as it is written down; raises INVALID_REQUEST for what is none."""

    def keep_heads(self, heads: Sequence[Head]) -> None:
        """Write down for the processes of this machine which heads there are. Raises OSError."""

    def key_of(self, request_pem: str) -> str:
        """SHA-256 of the public key in a signing request; raises INVALID_REQUEST."""
