"""Nodes that join a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, PageView, View
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.nodes.joining import MAX_TOKEN_LIFETIME_S, MAX_TOKEN_USES
from gpupool.domain.work.program.file_tree import MAX_TREE_BYTES

DEFAULT_JOIN_LIFE_S = 3600.0
_Text = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
MemberSecret = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]


class JoinTokenBody(Body):
    """A new join token: its lifetime and number of uses; ``for_head``: for heads."""

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
    """A new join token: only here is its ``secret`` shown. ``head`` is the address to join.

    A token for heads also has the name of this head's file with the database password, in gpupool's or libpq's format.
    The new head needs a copy of that file.
    """

    secret: str
    head: str
    database_password_file: str | None = None
    database_passfile: str | None = None


class JoinTokenList(PageView):
    """Join tokens, newest first."""

    join_tokens: list[JoinTokenView]


class VersionsBody(Body):
    """Versions of the software on a node."""

    gpupool: _Text
    ray: _Text
    python: _Text


class HeadBody(Body):
    """A machine that wants to be a head: address and certificate (PEM) of its API, and the port of a Ray GCS."""

    url: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^https://[\x21-\x7e]+$")]
    certificate: Annotated[str, Field(max_length=16384)]
    gcs_port: Annotated[int, Field(ge=1, le=65535)]


class JoinBody(Body):
    """The description of a new node by itself; ``certificate_request`` is a PKCS #10 request for its key, in PEM."""

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
    """A head; ``gcs_host`` and ``gcs_port`` are the address of Ray's GCS while it leads."""

    name: str
    url: str
    certificate: str
    gcs_host: str
    gcs_port: int
    added_at: float


class HeadsView(View):
    """All heads."""

    heads: list[HeadView]


class AdmissionView(View):
    """Answer to an admitted node; with ``secret`` it authenticates later requests, also to leave.

    Only a head gets ``authority_key``, with which it signs certificates of new nodes, and the URL of the ``database``.
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
    """A node that authenticates itself."""

    secret: MemberSecret
    force: bool = False


class StandingView(View):
    """The pool's record of a node; ``state`` is null before its first report, ``held`` counts its programs.

    ``heads`` lets the node find the leader.
    """

    state: NodeState | None
    gpus: list[str]
    held: int
    heads: list[HeadView] = Field(default_factory=list)


# Between heads

MAX_CONTENTS = 1_000  # number of contents in one request
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Space = Annotated[str, Field(pattern=r"^u-[A-Za-z0-9._@+-]{1,64}$")]
_Offset = Annotated[int, Field(ge=0, le=MAX_TREE_BYTES)]


class HeadFilesBody(Body):
    """The requesting head; ``secret`` is the one that it got when it joined."""

    secret: MemberSecret


class ContentsBody(HeadFilesBody):
    """Contents (digest and offset) of one owner's files."""

    space: _Space
    wanted: Annotated[list[tuple[_Digest, _Offset]], Field(max_length=MAX_CONTENTS)]


class FolderView(View):
    """A folder that live work needs: its owner, and the SHA-256 of its list of files."""

    space: str
    tree: str


class NeededView(View):
    """All folders that live work needs."""

    folders: list[FolderView]
