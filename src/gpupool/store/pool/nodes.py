"""Nodes and their membership."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from gpupool.domain.events import Event
from gpupool.domain.nodes.gpu import Node
from gpupool.store.backends.database import upsert
from gpupool.store.events import append_events
from gpupool.store.pool.rows import NODES
from gpupool.store.schema import tables as t
from gpupool.store.schema.usage_tables import gpu_models


def save_nodes(conn: Connection, nodes: Sequence[Node], events: Sequence[Event] = ()) -> None:
    """Insert or replace nodes and the models of their GPUs."""
    for node in nodes:
        NODES.save(conn, node)
        for gpu in node.report.gpus:
            upsert(conn, gpu_models, {"gpu_uuid": gpu.uuid, "model": gpu.model, "memory_mib": gpu.memory_mib})
    append_events(conn, events)


def delete_node(conn: Connection, name: str, event: Event) -> None:
    """Delete a node and revoke its membership; its GPUs' models and its history stay."""
    conn.execute(delete(t.nodes).where(t.nodes.c.name == name))
    revoke_member(conn, name, event)
    append_events(conn, (event,))


def revoke_member(conn: Connection, node: str, event: Event) -> bool:
    """Delete a machine as a member and as a head, and refuse its secret from now on; return whether it was one."""
    for table in (t.heads, t.head_reports):
        conn.execute(delete(table).where(table.c.name == node))
    secret = conn.execute(select(t.members.c.secret_sha256).where(t.members.c.node == node)).scalar()
    if secret is None:
        return False
    conn.execute(delete(t.members).where(t.members.c.node == node))
    removed = {"secret_sha256": secret, "node": node, "removed_at": event.at, "removed_by": event.actor}
    upsert(conn, t.removed_members, removed)
    return True
