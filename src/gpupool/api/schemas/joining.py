"""Machines that join a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.gpu import NodeState
from gpupool.domain.joining import LONGEST_LIFE_S, MOST_USES

DEFAULT_JOIN_LIFE_S = 3600.0
_Text = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
MemberSecret = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]


class JoinTokenBody(Body):
    """A join token to make: for how long, for how many machines; ``for_head``: for machines that may lead."""

    expires_in_s: Annotated[float, Field(gt=0, le=LONGEST_LIFE_S, allow_inf_nan=False)] = DEFAULT_JOIN_LIFE_S
    uses: Annotated[int, Field(ge=1, le=MOST_USES)] = 1
    note: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    for_head: bool = False


class JoinTokenView(View):
    """A join token, without its secret."""

    id: str
    created_by: str
    created_at: float
    expires_at: float
    uses_left: int
    revoked_at: float | None
    note: str
    for_head: bool = False


class NewJoinTokenView(JoinTokenView):
    """A join token just made: the only time its ``secret`` is shown. ``head`` is the address to join."""

    secret: str
    head: str


class JoinTokenList(View):
    """Join tokens, newest first."""

    join_tokens: list[JoinTokenView]


class VersionsBody(Body):
    """What is installed on a machine."""

    gpupool: _Text
    ray: _Text
    python: _Text


class HeadBody(Body):
    """A machine that wants to be a head: where its API will be, with which certificate (PEM), and the port of a GCS."""

    url: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^https://[\x21-\x7e]+$")]
    certificate: Annotated[str, Field(max_length=16384)]
    gcs_port: Annotated[int, Field(ge=1, le=65535)]


class JoinBody(Body):
    """What a new machine says of itself; ``certificate_request`` is a PKCS #10 request for its key, in PEM."""

    token: MemberSecret
    node: _Text
    address: _Text
    versions: VersionsBody
    certificate_request: Annotated[str, Field(max_length=16384)]
    head: HeadBody | None = None


class HeadView(View):
    """A machine that may lead; ``gcs_host`` and ``gcs_port`` are where Ray's GCS is when it does."""

    name: str
    url: str
    certificate: str
    gcs_host: str
    gcs_port: int
    added_at: float


class AdmissionView(View):
    """What a machine gets that is let in; ``secret`` is how it proves who it is when it asks or leaves.

    Only a head gets ``authority_key``, with which it signs for machines that join, and the URL of the ``database``.
    """

    node: str
    secret: str
    certificate: str
    ca: str
    ray_token: str
    ray_host: str
    ray_port: int
    pool_id: str
    heads: list[HeadView] = Field(default_factory=list)
    authority_key: str | None = None
    database: str | None = None


class MemberBody(Body):
    """A machine that speaks for itself."""

    secret: MemberSecret
    force: bool = False


class StandingView(View):
    """How the pool sees a machine; ``state`` is null before its first report, ``held`` counts programs there.

    ``heads`` are the machines that may lead, for whoever has to find the one that does.
    """

    state: NodeState | None
    gpus: list[str]
    held: int
    heads: list[HeadView] = Field(default_factory=list)
