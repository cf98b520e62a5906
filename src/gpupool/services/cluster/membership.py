"""Check that a machine that speaks for itself is a member of the cluster."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import MemberKey
from gpupool.domain.nodes.joining import RemovedMember, removal_error
from gpupool.domain.people.access import secret_hash


class ClusterMembers(NamedTuple):
    """The machines of a cluster, and the machines that were removed from it."""

    members: Sequence[MemberKey]
    removed: Sequence[RemovedMember]


def check_member(node: str, secret: str, members: Iterable[MemberKey], removed: Iterable[RemovedMember]) -> MemberKey:
    """Return the member with this name and secret.

    Raises NODE_REMOVED for a machine that was removed, UNAUTHENTICATED for an unknown one.
    """
    digest = secret_hash(secret)
    for member in members:
        if member.node == node and hmac.compare_digest(member.secret_sha256, digest):
            return member
    for former in removed:
        if hmac.compare_digest(former.secret_sha256, digest):
            raise removal_error(former)
    raise GpupoolError(
        ErrorCode.UNAUTHENTICATED,
        "This machine is not a member of the pool.",
        "Join again with a new token: 'gpupool join-token create' on the leader prints the command.",
    )
