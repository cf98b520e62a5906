"""Projects, users, tokens, nodes and what the pool knows of itself: small tables, read whole."""

from __future__ import annotations

from operator import attrgetter

from sqlalchemy import Connection, delete, select, update

from gpupool.domain.access import Project, Token, User
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node
from gpupool.store import mapping_access as mapping
from gpupool.store import tables as t
from gpupool.store.database import upsert
from gpupool.store.usage_tables import gpu_models

_name = attrgetter("name")  # sorted here: how a database sorts texts depends on how it was made


def projects(conn: Connection) -> list[Project]:
    """All projects by name."""
    return sorted(map(mapping.project_of, conn.execute(select(t.projects)).mappings()), key=_name)


def users(conn: Connection) -> list[User]:
    """All users by name."""
    return sorted(map(mapping.user_of, conn.execute(select(t.users)).mappings()), key=_name)


def nodes(conn: Connection) -> list[Node]:
    """All nodes by name."""
    return sorted(map(mapping.node_of, conn.execute(select(t.nodes)).mappings()), key=_name)


def tokens(conn: Connection, user: str | None) -> list[Token]:
    """Tokens, newest first; of one user when given."""
    statement = select(t.tokens).order_by(t.tokens.c.created_at.desc(), t.tokens.c.id.desc())
    if user is not None:
        statement = statement.where(t.tokens.c.user_name == user)
    return [mapping.token_of(row) for row in conn.execute(statement).mappings()]


def token_by_secret(conn: Connection, secret_sha256: str) -> Token | None:
    """The token with this hash."""
    row = conn.execute(select(t.tokens).where(t.tokens.c.secret_sha256 == secret_sha256)).mappings().first()
    return None if row is None else mapping.token_of(row)


def save_project(conn: Connection, project: Project) -> None:
    """Insert or replace."""
    upsert(conn, t.projects, mapping.project_row(project))


def delete_project(conn: Connection, name: str) -> None:
    """Remove; raises ``GpupoolError(UNKNOWN_PROJECT)``."""
    if not conn.execute(delete(t.projects).where(t.projects.c.name == name)).rowcount:
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", "See `gpupool project list`.")


def save_user(conn: Connection, user: User) -> None:
    """Insert or replace."""
    upsert(conn, t.users, mapping.user_row(user))


def save_node(conn: Connection, node: Node) -> None:
    """Insert or replace."""
    upsert(conn, t.nodes, mapping.node_row(node))
    for gpu in node.report.gpus:
        upsert(conn, gpu_models, {"gpu_uuid": gpu.uuid, "model": gpu.model, "memory_mib": gpu.memory_mib})


def delete_node(conn: Connection, name: str) -> None:
    """Forget a node, also as a head; its GPUs' models and what they did stay."""
    conn.execute(delete(t.nodes).where(t.nodes.c.name == name))
    conn.execute(delete(t.heads).where(t.heads.c.name == name))


def save_token(conn: Connection, token: Token) -> None:
    """Insert or replace."""
    upsert(conn, t.tokens, mapping.token_row(token))


def touch_token(conn: Connection, token_id: str, at: float) -> None:
    """Note a use; nothing happens when the token is gone."""
    conn.execute(update(t.tokens).where(t.tokens.c.id == token_id).values(last_used_at=at))


def save_meta(conn: Connection, name: str, value: str) -> None:
    """Insert or replace."""
    upsert(conn, t.meta, {"name": name, "value": value})


def meta(conn: Connection) -> dict[str, str]:
    """What the pool knows of itself: ``pool_id``, ``created_at``, and the scheduling policy once it was changed."""
    return {row.name: row.value for row in conn.execute(select(t.meta))}
