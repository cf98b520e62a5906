"""Machines that join a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.nodes.joining import MAX_TOKEN_LIFETIME_S, MAX_TOKEN_USES
from gpupool.domain.work.file_tree import MAX_TREE_BYTES

DEFAULT_JOIN_LIFE_S = 3600.0
_Text = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
MemberSecret = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]


class JoinTokenBody(Body):
    """A join token to make: for how long, for how many machines; ``for_head``: for machines that may lead."""

    expires_in_s: Annotated[float, Field(gt=0, le=MAX_TOKEN_LIFETIME_S, allow_inf_nan=False)] = DEFAULT_JOIN_LIFE_S
    uses: Annotated[int, Field(ge=1, le=MAX_TOKEN_USES)] = 1
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
    """A join token just made: the only time its ``secret`` is shown. ``head`` is the address to join.

    Of a token for heads: the file of this head with the password of the database, in gpupool's form or in libpq's. The
    new head needs a copy of it.
    """

    secret: str
    head: str
    database_password_file: str | None = None
    database_passfile: str | None = None


class JoinTokenList(View):
    """Join tokens, newest first."""

    join_tokens: list[JoinTokenView]


class VersionsBody(Body):
    """Versions of the software on a machine."""

    gpupool: _Text
    ray: _Text
    python: _Text


class HeadBody(Body):
    """A machine that wants to be a head: where its API will be, with which certificate (PEM), and the port of a GCS."""

    url: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^https://[\x21-\x7e]+$")]
    certificate: Annotated[str, Field(max_length=16384)]
    gcs_port: Annotated[int, Field(ge=1, le=65535)]


class JoinBody(Body):
    """Description of a new machine by itself; ``certificate_request`` is a PKCS #10 request for its key, in PEM."""

    token: MemberSecret
    node: _Text
    address: _Text
    versions: VersionsBody
    certificate_request: Annotated[str, Field(max_length=16384)]
    head: HeadBody | None = None


class HeadDatabaseBody(Body):
    """A machine that wants to be a head and shows a join token."""

    token: MemberSecret


class HeadDatabaseView(View):
    """The URL of the pool's database, without a password."""

    database: str


class HeadView(View):
    """A machine that may lead; ``gcs_host`` and ``gcs_port`` are where Ray's GCS is when it does."""

    name: str
    url: str
    certificate: str
    gcs_host: str
    gcs_port: int
    added_at: float


class HeadsView(View):
    """The machines that may lead."""

    heads: list[HeadView]


class AdmissionView(View):
    """Answer to a machine that is admitted; with ``secret`` it authenticates later requests and its leaving.

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
    """A machine as the pool sees it; ``state`` is null before its first report, ``held`` counts programs there.

    ``heads`` are the machines that may lead, for whoever has to find the one that does.
    """

    state: NodeState | None
    gpus: list[str]
    held: int
    heads: list[HeadView] = Field(default_factory=list)


# Between heads

MAX_CONTENTS = 1_000  # contents at once
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Space = Annotated[str, Field(pattern=r"^u-[A-Za-z0-9._@+-]{1,64}$")]
_Offset = Annotated[int, Field(ge=0, le=MAX_TREE_BYTES)]


class HeadFilesBody(Body):
    """A head that asks: ``secret`` is what it was given when it joined."""

    secret: MemberSecret


class ContentsBody(HeadFilesBody):
    """Contents (digest, where to begin) of one owner's files."""

    space: _Space
    wanted: Annotated[list[tuple[_Digest, _Offset]], Field(max_length=MAX_CONTENTS)]


class FolderView(View):
    """A folder that live work needs: whose, and the SHA-256 of its list of files."""

    space: str
    tree: str


class NeededView(View):
    """All of them."""

    folders: list[FolderView]
